-- What was spent while each commit was checked out, most expensive first?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. A call is assigned to the last git state that its session recorded before it; NULL if
-- there is none.
SELECT
    states.repository,
    states.branch,
    states.commit,
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
FROM call_costs AS calls
ASOF LEFT JOIN completed_git_states AS states
    ON calls.session_id = states.session_id AND calls.at_ns >= states.at_ns
WHERE
    ($session_id::VARCHAR IS NULL OR calls.session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR calls.at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR calls.at_ns < $until_ns::BIGINT)
GROUP BY states.repository, states.branch, states.commit
ORDER BY sum(cost_usd) DESC NULLS LAST, states.repository, states.branch, states.commit;
