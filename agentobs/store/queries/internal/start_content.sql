-- Which lines of content belong to the starts and ends of a session?
--
-- $session_id: the session.
SELECT segment_id, arguments_content AS content_id FROM session_starts
WHERE session_id = $session_id::VARCHAR AND arguments_content IS NOT NULL
UNION ALL
SELECT segment_id, end_content FROM session_ends
WHERE session_id = $session_id::VARCHAR AND end_content IS NOT NULL;
