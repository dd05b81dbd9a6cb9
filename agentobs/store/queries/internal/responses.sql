-- Where is the content of the requests and responses of these attempts of a session?
--
-- $attempt_ids: the attempts.
SELECT attempt_id, session_id, segment_id, request_content, response_content
FROM attempts
WHERE session_id = $session_id::VARCHAR AND list_contains($attempt_ids::VARCHAR[], attempt_id)
ORDER BY segment_id, sequence;
