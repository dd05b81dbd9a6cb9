-- How much was spent since a time, such as the start of today?
--
-- $since_ns: the time; only calls sent at or after it count. Calls without a price add nothing to the sum; they count
-- as not exact.
SELECT
    coalesce(sum(cost_usd), 0) AS cost_usd,
    count(*) FILTER (WHERE cost_status <> 'exact') AS not_exact_calls,
    count(*) AS calls
FROM costs
WHERE at_ns >= $since_ns::BIGINT
HAVING count(*) > 0;
