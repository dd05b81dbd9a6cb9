-- What did caching save for all sessions with one name, and how much of their input came from the cache?
--
-- $since_ns, $until_ns: only sessions whose last call was sent from the first time on and before the second, or NULL.
-- $limit: the maximum number of names, most expensive first, or NULL for all.
WITH named AS (
    SELECT session_id, arg_min(name, started_ns) AS name
    FROM session_starts
    GROUP BY session_id
), wanted AS (
    SELECT session_id, max(at_ns) AS last_ns
    FROM usage
    GROUP BY session_id
    HAVING
        ($since_ns::BIGINT IS NULL OR last_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR last_ns < $until_ns::BIGINT)
)
SELECT
    named.name,
    count(*) AS sessions,
    sum(efficiency.calls)::BIGINT AS calls,
    sum(efficiency.input_tokens) AS input_tokens,
    sum(efficiency.cache_read_tokens) AS cache_read_tokens,
    sum(efficiency.cache_write_tokens) AS cache_write_tokens,
    sum(efficiency.cache_read_tokens)
        / nullif(sum(efficiency.input_tokens + efficiency.cache_read_tokens + efficiency.cache_write_tokens), 0)
        AS hit_ratio,
    sum(efficiency.saved_usd) AS saved_usd,
    sum(efficiency.cost_usd) AS cost_usd,
    summed_status(efficiency.cost_usd, efficiency.cost_status) AS cost_status,
    sum(efficiency.unpriced_calls)::BIGINT AS unpriced_calls
FROM wanted
JOIN cache_efficiency AS efficiency ON wanted.session_id = efficiency.session_id
LEFT JOIN named ON wanted.session_id = named.session_id
GROUP BY named.name
ORDER BY sum(efficiency.cost_usd) DESC NULLS LAST, named.name
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
