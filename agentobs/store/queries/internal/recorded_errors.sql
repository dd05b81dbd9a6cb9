-- Which tool results of one session are errors or denials whose content was recorded when the tool ran?
--
-- $session_id: the session. attempt_id, ordinal and tool_use_id identify the call, which the client ran.
SELECT answered.attempt_id, answered.ordinal, results.tool_use_id, results.session_id, results.segment_id, results.content,
    results.result_bytes
FROM answered_calls AS answered
JOIN tool_results AS results
    ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
WHERE answered.session_id = $session_id::VARCHAR AND results.source = 'run' AND results.content IS NOT NULL
    AND (results.is_error OR results.outcome IN ('denied', 'blocked'));
