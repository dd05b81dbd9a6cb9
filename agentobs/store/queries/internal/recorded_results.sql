-- Which tool results of one attempt have content that was recorded when the tool ran?
SELECT results.*, uses.name
FROM answered_calls AS answered
JOIN tool_results AS results
    ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
JOIN tool_uses AS uses
    ON answered.session_id = uses.session_id AND answered.attempt_id = uses.attempt_id
    AND answered.ordinal = uses.ordinal
WHERE answered.session_id = $session_id AND answered.attempt_id = $attempt_id
    AND results.source = 'run' AND results.content IS NOT NULL
ORDER BY answered.ordinal
LIMIT 100;
