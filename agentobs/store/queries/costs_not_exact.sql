-- Which calls are not exact, the most expensive first?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent then or later, and before
-- then, or NULL. $limit: at most so many, or NULL for all; all_calls counts them all.
SELECT
    session_id, attempt_id, iteration, at_ns, model, canonical_model, kind, cost_status, cost_usd,
    count(*) OVER () AS all_calls
FROM audited_costs
WHERE
    cost_status <> 'exact'
    AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
ORDER BY cost_usd DESC NULLS FIRST, at_ns, attempt_id, iteration
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
