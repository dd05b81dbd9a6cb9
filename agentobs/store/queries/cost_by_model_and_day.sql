-- What did each model cost on each day?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. Days are in UTC.
--
-- Tokens with the same price are added up before they are multiplied by it. The result is exactly the same, but the
-- query is much faster.
WITH summed AS (
    SELECT
        canonical_model,
        day,
        cost_status,
        input_usd_each,
        output_usd_each,
        cache_read_usd_each,
        cache_write_5m_usd_each,
        cache_write_1h_usd_each,
        web_search_usd_each,
        count(*) AS calls,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        sum(cache_write_5m_tokens) AS cache_write_5m_tokens,
        sum(cache_write_1h_tokens) AS cache_write_1h_tokens,
        sum(web_search_requests) AS web_search_requests
    FROM audited_costs
    WHERE
        ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
    GROUP BY ALL
), priced AS (
    SELECT
        *,
        (input_tokens * input_usd_each)::DECIMAL(38, 12) AS input_usd,
        (output_tokens * output_usd_each)::DECIMAL(38, 12) AS output_usd,
        (cache_read_tokens * cache_read_usd_each)::DECIMAL(38, 12) AS cache_read_usd,
        (cache_write_5m_tokens * cache_write_5m_usd_each)::DECIMAL(38, 12) AS cache_write_5m_usd,
        (cache_write_1h_tokens * cache_write_1h_usd_each)::DECIMAL(38, 12) AS cache_write_1h_usd,
        (web_search_requests * web_search_usd_each)::DECIMAL(38, 12) AS server_tools_usd,
        input_usd + output_usd + cache_read_usd + cache_write_5m_usd + cache_write_1h_usd + server_tools_usd AS cost_usd
    FROM summed
)
SELECT
    canonical_model AS model,
    day,
    sum(calls)::BIGINT AS calls,
    sum(input_tokens) AS input_tokens,
    sum(output_tokens) AS output_tokens,
    sum(cache_read_tokens) AS cache_read_tokens,
    sum(cache_write_5m_tokens) + sum(cache_write_1h_tokens) AS cache_write_tokens,
    sum(cost_usd) AS cost_usd,
    summed_status(cost_usd, cost_status) AS cost_status,
    coalesce(sum(calls) FILTER (WHERE cost_status <> 'exact'), 0)::BIGINT AS not_exact_calls,
    coalesce(sum(calls) FILTER (WHERE cost_usd IS NULL), 0)::BIGINT AS unpriced_calls,
    coalesce(sum(calls) FILTER (WHERE cost_status = 'exact'), 0)::BIGINT AS exact_calls,
    coalesce(sum(calls) FILTER (WHERE cost_status = 'lower_bound'), 0)::BIGINT AS lower_bound_calls,
    coalesce(sum(calls) FILTER (WHERE cost_status = 'estimated'), 0)::BIGINT AS estimated_calls,
    sum(cache_write_5m_tokens) AS cache_write_5m_tokens,
    sum(cache_write_1h_tokens) AS cache_write_1h_tokens,
    sum(input_usd) AS input_usd,
    sum(output_usd) AS output_usd,
    sum(cache_read_usd) AS cache_read_usd,
    sum(cache_write_5m_usd) AS cache_write_5m_usd,
    sum(cache_write_1h_usd) AS cache_write_1h_usd,
    sum(server_tools_usd) AS server_tools_usd
FROM priced
GROUP BY canonical_model, day
ORDER BY day DESC, cost_usd DESC NULLS LAST, model;
