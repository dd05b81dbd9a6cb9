-- Which calls paid again for tokens that had been in the cache, why, and what changed since which earlier request?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. $limit: the maximum number of rows, or NULL for all.
SELECT session_id, lane, attempt_id, at_ns, model, gap_ns, missed_tokens, wasted_usd, reason, changed_message, reason_source,
    zones_changed, turn, compared_turn, compared_attempt_id
FROM cache_misses
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
ORDER BY at_ns, attempt_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
