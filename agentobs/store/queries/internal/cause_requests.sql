-- Which requests did a session send, with their lanes, turns and the contents of their bodies, oldest first?
--
-- $session_id: the session. is_lane_derived is true if agentobs derived the lane, because the client does not report it.
SELECT
    attempt_id, interaction_id, lane, turn, coalesce(model, model_requested) AS model, outcome, stop_reason, makes_turns,
    continues_attempt_id, reported_lane IS NOT NULL AS is_lane_derived, started_ns, duration_ns,
    started_ns + coalesce(first_token_ns, first_chunk_ns, headers_ns, duration_ns) AS response_ns,
    segment_id, request_content, response_content
FROM attempts
WHERE session_id = $session_id::VARCHAR
ORDER BY started_ns, session_sequence, attempt_id;
