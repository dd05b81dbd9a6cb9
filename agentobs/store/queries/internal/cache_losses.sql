-- Which calls of a session paid more because their prompts were not read from the cache, and why?
--
-- $session_id: the session. $limit: the maximum number of rows, or NULL for all. One row for each call, as in
-- cache_losses, the most expensive first. The columns about the comparison with the previous request are NULL if the
-- call is not a cache miss.
SELECT
    lost.lane, lost.attempt_id, lost.at_ns, attempts.model, missed.gap_ns, lost.missed_tokens, lost.wasted_usd AS extra_usd,
    lost.reason,
    missed.changed_message, lost.reason_source, missed.zones_changed, lost.turn, missed.compared_turn
FROM cache_losses AS lost
LEFT JOIN attempts
    ON attempts.session_id = $session_id::VARCHAR AND lost.attempt_id = attempts.attempt_id
LEFT JOIN cache_misses AS missed
    ON missed.session_id = $session_id::VARCHAR AND lost.attempt_id = missed.attempt_id
WHERE lost.session_id = $session_id::VARCHAR AND lost.missed_tokens > 0
ORDER BY lost.wasted_usd DESC NULLS LAST, lost.at_ns, lost.attempt_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
