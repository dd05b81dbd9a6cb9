-- Which calls of one session ran with an input that hooks or a person changed? Each row contains the recorded content.
SELECT
    answered.attempt_id, results.session_id, results.segment_id, results.content, results.tool_use_id, uses.name,
    string_agg(DISTINCT changes.labels['by'], ' and a ' ORDER BY changes.labels['by']) AS changed_by
FROM events AS changes
JOIN tool_results AS results
    ON changes.session_id = results.session_id AND changes.labels['tool_use_id'] = results.tool_use_id
    AND changes.lane = results.lane AND changes.turn IS NOT DISTINCT FROM results.turn
    AND changes.interaction_id IS NOT DISTINCT FROM results.interaction_id
JOIN answered_calls AS answered
    ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
JOIN tool_uses AS uses
    ON answered.session_id = uses.session_id AND answered.attempt_id = uses.attempt_id
    AND answered.ordinal = uses.ordinal
WHERE
    changes.session_id = $session_id::VARCHAR AND changes.lane = $lane::VARCHAR
    AND changes.kind = 'rewritten' AND changes.label = 'input'
GROUP BY ALL
ORDER BY results.tool_use_id
LIMIT 1000;
