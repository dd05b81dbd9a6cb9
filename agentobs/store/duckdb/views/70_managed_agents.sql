-- Agents that the provider runs: what a program has seen of them, and what they cost.

CREATE OR REPLACE VIEW managed_sessions AS
WITH happened AS (
    SELECT
        session_id, labels['managed_session_id'] AS managed_session_id, labels['attempt_id'] AS attempt_id, numbers, at_ns
    FROM events
    WHERE kind = 'managed_agent'
), observed AS (
    SELECT
        session_id, managed_session_id, count(*) AS events, min(at_ns) AS first_ns, max(at_ns) AS last_ns,
        arg_max(numbers, at_ns) FILTER (WHERE map_contains(numbers, 'output_tokens')) AS reported
    FROM happened
    GROUP BY session_id, managed_session_id
), requests AS (
    SELECT DISTINCT session_id, managed_session_id, attempt_id FROM happened WHERE attempt_id IS NOT NULL
), counted AS (
    SELECT
        requests.session_id,
        requests.managed_session_id,
        count(DISTINCT usage.attempt_id) AS requests,
        count(*) FILTER (WHERE usage.note IS DISTINCT FROM 'usage:unreported') AS counted
    FROM requests
    JOIN usage USING (session_id, attempt_id)
    GROUP BY requests.session_id, requests.managed_session_id
), spent AS (
    SELECT
        requests.session_id,
        requests.managed_session_id,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        sum(cache_write_tokens) AS cache_write_tokens,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status
    FROM requests
    JOIN audited_costs USING (session_id, attempt_id)
    GROUP BY requests.session_id, requests.managed_session_id
)
SELECT
    observed.session_id,
    observed.managed_session_id,
    observed.events,
    observed.first_ns,
    observed.last_ns,
    coalesce(counted.requests, 0) AS requests,
    spent.input_tokens,
    spent.output_tokens,
    spent.cache_read_tokens,
    spent.cache_write_tokens,
    CASE WHEN counted.counted > 0 THEN spent.cost_usd END::DECIMAL(38, 12) AS cost_usd,
    CASE
        WHEN coalesce(counted.counted, 0) = 0 THEN 'not counted'
        WHEN spent.session_id IS NULL THEN 'counted elsewhere'
        ELSE spent.cost_status
    END AS cost_status,
    reported['output_tokens']::BIGINT AS reported_output_tokens,
    reported['active_seconds'] AS active_seconds,
    (reported['list_cost_cents']::BIGINT * 0.01::DECIMAL(3, 2))::DECIMAL(38, 12) AS list_cost_usd
FROM observed
LEFT JOIN counted
    ON observed.session_id = counted.session_id AND observed.managed_session_id = counted.managed_session_id
LEFT JOIN spent ON observed.session_id = spent.session_id AND observed.managed_session_id = spent.managed_session_id;
COMMENT ON VIEW managed_sessions IS 'One row for each session of an agent of the provider, and each recorded session that has seen its events.';
COMMENT ON COLUMN managed_sessions.session_id IS 'The ID of the recorded session.';
COMMENT ON COLUMN managed_sessions.managed_session_id IS 'The provider''s ID of the agent''s session.';
COMMENT ON COLUMN managed_sessions.events IS 'The number of events that were seen.';
COMMENT ON COLUMN managed_sessions.first_ns IS 'When the first of these events happened. [ns since 1970 UTC]';
COMMENT ON COLUMN managed_sessions.last_ns IS 'When the last of these events happened. [ns since 1970 UTC]';
COMMENT ON COLUMN managed_sessions.requests IS 'The number of requests to a model that were seen.';
COMMENT ON COLUMN managed_sessions.input_tokens IS 'Uncached input of these requests; NULL if none was counted here. [tokens]';
COMMENT ON COLUMN managed_sessions.output_tokens IS 'Output of these requests; NULL if none was counted here. [tokens]';
COMMENT ON COLUMN managed_sessions.cache_read_tokens IS 'Input of these requests that was read from the cache; NULL if none was counted here. [tokens]';
COMMENT ON COLUMN managed_sessions.cache_write_tokens IS 'Input of these requests that was written to the cache; NULL if none was counted here. [tokens]';
COMMENT ON COLUMN managed_sessions.cost_usd IS 'The cost of these requests, without the time in which the agent ran; NULL if nothing was counted or no price is known. [USD]';
COMMENT ON COLUMN managed_sessions.cost_status IS '`not counted`: no usage was seen; `counted elsewhere`: another recorded session has counted the same events; otherwise as in audited_costs, at best `lower_bound`.';
COMMENT ON COLUMN managed_sessions.reported_output_tokens IS 'The output of the agent''s session so far, as the provider last reported it; NULL if it did not. [tokens]';
COMMENT ON COLUMN managed_sessions.active_seconds IS 'How long the agent has run so far, as the provider last reported it; NULL if it did not. [s]';
COMMENT ON COLUMN managed_sessions.list_cost_usd IS 'The provider''s list price of the agent''s session so far, as it last reported it; NULL if it did not. [USD]';
