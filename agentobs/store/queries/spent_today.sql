-- What was spent since an instant, such as the start of today?
--
-- $since_ns: the instant; calls sent then or later count. Of calls without a price nothing is added: they are
-- among those that are not exact.
SELECT
    coalesce(sum(cost_usd), 0) AS cost_usd,
    count(*) FILTER (WHERE cost_status <> 'exact') AS not_exact_calls,
    count(*) AS calls
FROM costs
WHERE at_ns >= $since_ns::BIGINT
HAVING count(*) > 0;
