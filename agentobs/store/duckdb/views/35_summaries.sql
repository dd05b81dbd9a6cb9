-- Summaries of conversations that were requested and not used.

CREATE OR REPLACE VIEW unused_summaries AS
WITH requested AS (
    -- All requests for one summary have their own lane, below the lane of the conversation.
    SELECT
        session_id,
        regexp_replace(lane, '/[^/]*$', '') AS parent_lane,
        lane AS summary_lane,
        max(turn) AS turn,
        count(DISTINCT llm_request_id) AS requests,
        max(started_ns + duration_ns) AS at_ns,
        max(session_sequence) AS session_sequence,
        count(*) FILTER (WHERE outcome = 'ok') AS responses
    FROM attempts
    WHERE query_source IN ('compaction', 'summary') AND origin = 'live'
    GROUP BY session_id, lane
), ended AS (
    SELECT
        session_id, lane, session_sequence, kind,
        kind = 'compaction' AND coalesce(numbers['summary'], 0) = 1 AS has_summary
    FROM events
    WHERE kind IN ('compaction', 'compaction_failed')
), reported AS (
    SELECT session_id, lane, session_sequence, label FROM events WHERE kind = 'summary_failed'
), spent AS (
    SELECT
        session_id, attempt_id, sum(cost_usd) AS cost_usd, summed_status(cost_usd, cost_status) AS cost_status,
        sum(input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens + output_tokens) AS tokens
    FROM audited_costs
    GROUP BY session_id, attempt_id
), priced AS (
    SELECT
        attempts.session_id, attempts.lane, sum(spent.cost_usd) AS cost_usd,
        summed_status(spent.cost_usd, spent.cost_status) AS cost_status, sum(spent.tokens) AS billed_tokens
    FROM attempts
    JOIN spent ON attempts.session_id = spent.session_id AND attempts.attempt_id = spent.attempt_id
    WHERE attempts.query_source IN ('compaction', 'summary')
    GROUP BY attempts.session_id, attempts.lane
)
SELECT
    requested.session_id,
    requested.parent_lane AS lane,
    requested.turn,
    requested.at_ns,
    requested.summary_lane,
    requested.requests,
    CASE WHEN reported.session_sequence < ended.session_sequence THEN reported.label END AS reason,
    priced.billed_tokens,
    priced.cost_usd,
    priced.cost_status
FROM requested
-- The compaction that follows the requests shows whether the summary was used.
ASOF JOIN ended
    ON requested.session_id = ended.session_id AND requested.parent_lane = ended.lane
    AND requested.session_sequence < ended.session_sequence
ASOF LEFT JOIN reported
    ON requested.session_id = reported.session_id AND requested.parent_lane = reported.lane
    AND requested.session_sequence < reported.session_sequence
LEFT JOIN priced ON requested.session_id = priced.session_id AND requested.summary_lane = priced.lane
WHERE NOT ended.has_summary AND requested.responses > 0;
COMMENT ON VIEW unused_summaries IS 'One row for each summary of a conversation that the agent loop requested and did not use, although the model responded.';
COMMENT ON COLUMN unused_summaries.session_id IS 'The ID of the session.';
COMMENT ON COLUMN unused_summaries.lane IS 'The lane of the conversation: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN unused_summaries.turn IS 'The turn before which the conversation was to be compacted, or NULL.';
COMMENT ON COLUMN unused_summaries.at_ns IS 'When the last response arrived. [ns since 1970 UTC]';
COMMENT ON COLUMN unused_summaries.summary_lane IS 'The lane of the requests for the summary.';
COMMENT ON COLUMN unused_summaries.requests IS 'The number of LLM requests for the summary.';
COMMENT ON COLUMN unused_summaries.reason IS 'Why it was not used: `no_text`, `refusal`, `cut`, `too_long`, `not_shorter` or `no_response`; NULL if it was recorded by an older version.';
COMMENT ON COLUMN unused_summaries.billed_tokens IS 'All billed tokens of these requests, including cached tokens. [tokens]';
COMMENT ON COLUMN unused_summaries.cost_usd IS 'The cost of these requests; NULL if no price is known. [USD]';
COMMENT ON COLUMN unused_summaries.cost_status IS 'The certainty of the cost, as in cost_by_source.';
