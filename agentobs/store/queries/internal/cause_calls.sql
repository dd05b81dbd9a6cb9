-- Which tool calls did the responses of a session contain, in order?
--
-- $session_id: the session.
SELECT
    attempt_id, ordinal, tool_use_id, interaction_id, lane, turn, name, runs_on, outcome, error_code, input_bytes, result_bytes,
    coalesce(started_ns, requested_ns) AS started_ns, duration_ns, result_ns
FROM tool_calls
WHERE session_id = $session_id::VARCHAR
ORDER BY requested_ns, attempt_id, runs_on, ordinal;
