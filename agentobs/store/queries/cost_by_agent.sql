-- What did each agent of each session cost, sub-agents separately, most expensive first?
--
-- Agents whose amounts look the same with four decimal places are in the order of their first calls, as their numbers.
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL.
WITH spent AS (
    SELECT
        session_id,
        lane,
        min(at_ns) AS first_ns,
        count(*) AS calls,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        sum(cache_write_tokens) AS cache_write_tokens,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status,
        count(*) FILTER (WHERE cost_status = 'exact') AS exact_calls,
        count(*) FILTER (WHERE cost_status = 'lower_bound') AS lower_bound_calls,
        count(*) FILTER (WHERE cost_status = 'estimated') AS estimated_calls,
        count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls,
        sum(cache_write_5m_tokens) AS cache_write_5m_tokens,
        sum(cache_write_1h_tokens) AS cache_write_1h_tokens,
        sum(input_usd) AS input_usd,
        sum(output_usd) AS output_usd,
        sum(cache_read_usd) AS cache_read_usd,
        sum(cache_write_5m_usd) AS cache_write_5m_usd,
        sum(cache_write_1h_usd) AS cache_write_1h_usd,
        sum(server_tools_usd) AS server_tools_usd
    FROM call_costs
    WHERE
        ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
    GROUP BY session_id, lane
), named AS (
    SELECT session_id, arg_min(name, started_ns) AS name
    FROM session_starts
    GROUP BY session_id
)
SELECT spent.session_id, named.name, spent.* EXCLUDE (session_id, first_ns)
FROM spent
LEFT JOIN named ON spent.session_id = named.session_id
ORDER BY
    CASE WHEN cost_usd < 0.0001 THEN cost_usd ELSE round(cost_usd, 4) END DESC NULLS LAST,
    spent.session_id,
    first_ns,
    lane;
