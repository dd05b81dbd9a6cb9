-- What did each turn of a session do, how long did it take, and what did it cost?
--
-- $session_id: the session. tool_use_count, tools_ns, tool_errors and denied_calls are about the tools that the client
-- runs; tools of the provider run within the response. estimated_tools_ns is their time according to the requests, if it
-- was not recorded. tool_errors is the number of failed calls, without the denied ones.
WITH spent AS (
    SELECT
        attempt_id,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        sum(cache_write_tokens) AS cache_write_tokens,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status,
        count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls
    FROM audited_costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), ran AS (
    SELECT
        attempt_id, sum(duration_ns) AS tools_ns, max(estimated_ns) AS estimated_tools_ns,
        count(*) FILTER (WHERE is_error AND coalesce(outcome, '') NOT IN ('denied', 'blocked')) AS tool_errors,
        count(*) FILTER (WHERE outcome IN ('denied', 'blocked')) AS denied_calls
    FROM tool_calls
    WHERE session_id = $session_id::VARCHAR AND runs_on = 'client'
    GROUP BY attempt_id
)
SELECT
    turns.lane,
    turns.turn,
    turns.attempt_id,
    turns.attempt,
    turns.started_ns,
    turns.duration_ns,
    turns.first_chunk_ns,
    turns.model,
    turns.stop_reason,
    turns.tool_use_count,
    ran.tools_ns,
    CASE WHEN ran.tools_ns IS NULL THEN ran.estimated_tools_ns END AS estimated_tools_ns,
    coalesce(ran.tool_errors, 0) AS tool_errors,
    spent.* EXCLUDE (attempt_id),
    coalesce(ran.denied_calls, 0) AS denied_calls
FROM turns
LEFT JOIN spent ON turns.attempt_id = spent.attempt_id
LEFT JOIN ran ON turns.attempt_id = ran.attempt_id
WHERE turns.session_id = $session_id::VARCHAR
ORDER BY turns.started_ns, turns.lane, turns.turn;
