-- Which calls do not have an exact cost, most expensive first?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. $limit: the maximum number of rows, or NULL for all. all_calls is the number of all such calls,
-- independent of the limit.
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
