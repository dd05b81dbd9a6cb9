-- What was used and what did it cost, by model, day and service tier?
--
-- $since_ns, $until_ns: only calls sent from the first time on and before the second, or NULL. Days are in UTC.
SELECT
    day,
    model,
    service_tier,
    count(*) AS calls,
    sum(input_tokens) AS input_tokens,
    sum(output_tokens) AS output_tokens,
    sum(cache_read_tokens) AS cache_read_tokens,
    sum(cache_write_5m_tokens) AS cache_write_5m_tokens,
    sum(cache_write_1h_tokens) AS cache_write_1h_tokens,
    sum(web_search_requests) AS web_search_requests,
    sum(cost_usd) AS cost_usd,
    sum(server_tools_usd) AS server_tools_usd,
    count(*) FILTER (WHERE cost_status = 'exact') AS exact_calls,
    count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls
FROM audited_costs
WHERE
    ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY day, model, service_tier
ORDER BY day, model, service_tier NULLS FIRST;
