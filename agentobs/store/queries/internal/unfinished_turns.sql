-- Which turns of a session got no complete response, and what did their last attempts cost?
--
-- $session_id: the session. These turns are not in `turns`, so no number of turns includes them. The columns are those of
-- session_turns. stop_reason is the outcome of the last attempt, such as `cut`, with its HTTP status if it is an error.
WITH tried AS (
    SELECT *
    FROM attempts
    WHERE
        session_id = $session_id::VARCHAR AND makes_turns AND turn IS NOT NULL
        AND query_source IN ('main', 'sub_agent')
), last_tried AS (
    SELECT *
    FROM tried
    QUALIFY
        row_number() OVER (PARTITION BY lane, turn ORDER BY started_ns DESC, attempt_id DESC) = 1
        -- A turn that the client canceled, or whose response may still come, did not fail.
        AND NOT bool_or(outcome IN ('ok', 'cancelled', 'crashed')) OVER (PARTITION BY lane, turn)
), spent AS (
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
)
SELECT
    last_tried.lane,
    last_tried.turn,
    last_tried.attempt_id,
    last_tried.attempt,
    last_tried.started_ns,
    last_tried.duration_ns,
    last_tried.first_chunk_ns,
    coalesce(last_tried.model, last_tried.model_requested) AS model,
    concat_ws(' ', last_tried.outcome, nullif(last_tried.status, 200)) AS stop_reason,
    last_tried.tool_use_count,
    NULL::BIGINT AS tools_ns,
    NULL::BIGINT AS estimated_tools_ns,
    0 AS tool_errors,
    spent.* EXCLUDE (attempt_id),
    0 AS denied_calls
FROM last_tried
LEFT JOIN spent ON last_tried.attempt_id = spent.attempt_id
ORDER BY last_tried.started_ns, last_tried.lane, last_tried.turn;
