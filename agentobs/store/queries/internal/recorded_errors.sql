-- Which tool results of one session are errors whose content was recorded when the tool ran?
--
-- $session_id: the session. attempt_id and ordinal identify the call.
SELECT answered.attempt_id, answered.ordinal, results.session_id, results.segment_id, results.content, results.result_bytes
FROM answered_calls AS answered
JOIN tool_results AS results
    ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
WHERE answered.session_id = $session_id::VARCHAR AND results.source = 'run' AND results.content IS NOT NULL
    AND results.is_error;
