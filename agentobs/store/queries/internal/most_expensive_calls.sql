-- Which calls of one session cost most? Each row has the number of all calls.
--
-- $limit: the maximum number of rows.
SELECT *, count(*) OVER () AS all_calls
FROM call_costs
WHERE session_id = $session_id::VARCHAR
ORDER BY cost_usd DESC NULLS FIRST, at_ns, attempt_id, iteration
LIMIT $limit::BIGINT;
