-- Costs by model, session, day, agent, source and tool, and the effect of caching.
--
-- Each sum has another column with its certainty. Sums are exact decimals. If no call has a price, a sum is NULL, never
-- 0.

-- The certainty of a sum of costs: the lowest certainty of the calls in it.
CREATE OR REPLACE MACRO summed_status(cost_usd, cost_status) AS CASE
    WHEN count(cost_usd) = 0 THEN 'unknown_model'
    WHEN count(*) FILTER (WHERE cost_status = 'estimated') > 0 THEN 'estimated'
    WHEN count(*) FILTER (WHERE cost_status <> 'exact') > 0 THEN 'lower_bound'
    ELSE 'exact'
END;

CREATE OR REPLACE VIEW incomplete_sessions AS
WITH damaged_segments AS (
    SELECT segment_id FROM segments WHERE damaged_records > 0 OR missing_records > 0
)
SELECT session_id FROM session_ends WHERE dropped > 0
UNION
SELECT session_id FROM gaps
UNION
SELECT session_id FROM session_starts WHERE segment_id IN (FROM damaged_segments)
UNION
SELECT session_id FROM attempts WHERE segment_id IN (FROM damaged_segments)
UNION
SELECT session_id FROM session_ends WHERE segment_id IN (FROM damaged_segments);
COMMENT ON VIEW incomplete_sessions IS 'Sessions with missing data: records were dropped, or a segment of the session is damaged.';
COMMENT ON COLUMN incomplete_sessions.session_id IS 'The ID of the session.';

CREATE OR REPLACE VIEW audited_costs AS
SELECT
    * REPLACE (
        CASE
            WHEN cost_status = 'exact' AND session_id IN (SELECT session_id FROM incomplete_sessions) THEN 'lower_bound'
            ELSE cost_status
        END AS cost_status
    )
FROM costs;
COMMENT ON VIEW audited_costs IS 'One row for each billed call, as in costs. If records of its session are missing, the cost is at best a lower bound. The cost views below are sums of these rows.';
COMMENT ON COLUMN audited_costs.session_id IS 'The ID of the session.';
COMMENT ON COLUMN audited_costs.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN audited_costs.iteration IS '0 if the response has no iterations; the number of the iteration, from 1, otherwise.';
COMMENT ON COLUMN audited_costs.at_ns IS 'When the attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN audited_costs.sent_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN audited_costs.day IS 'The day on which the attempt was sent. [UTC]';
COMMENT ON COLUMN audited_costs.kind IS 'What the model generated: `message`, `compaction` and others.';
COMMENT ON COLUMN audited_costs.model IS 'The billed model.';
COMMENT ON COLUMN audited_costs.canonical_model IS 'The canonical name of the billed model, even if an alias or a dated ID was billed.';
COMMENT ON COLUMN audited_costs.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN audited_costs.inference_geo IS 'Where inference ran, or NULL.';
COMMENT ON COLUMN audited_costs.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN audited_costs.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN audited_costs.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN audited_costs.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN audited_costs.cache_write_tokens IS 'Input tokens that were written to the cache: the sum of the next two columns. [tokens]';
COMMENT ON COLUMN audited_costs.cache_write_5m_tokens IS 'Input tokens that were written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN audited_costs.cache_write_1h_tokens IS 'Input tokens that were written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN audited_costs.web_search_requests IS 'The number of web searches that the provider ran. [requests]';
COMMENT ON COLUMN audited_costs.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN audited_costs.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN audited_costs.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN audited_costs.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN audited_costs.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN audited_costs.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';
COMMENT ON COLUMN audited_costs.cost_usd IS 'The total cost; NULL, never 0, without a price. [USD]';
COMMENT ON COLUMN audited_costs.cost_status IS '`exact`; `lower_bound`: a stream ended before its final counts, the provider ran something for which agentobs has no price, or records of the session are missing; `estimated`: see usage.note and prices.note; `unknown_model`: no price is known; `unpriced`: no price was looked up yet.';
COMMENT ON COLUMN audited_costs.counts_status IS 'The part of cost_status that does not depend on the price: `exact`, `lower_bound` or `estimated`.';
COMMENT ON COLUMN audited_costs.price_version IS 'The version of the prices that were used.';
COMMENT ON COLUMN audited_costs.input_usd_each IS 'The price of a token of uncached input; NULL without a price. [USD]';
COMMENT ON COLUMN audited_costs.output_usd_each IS 'The price of a token of output; NULL without a price. [USD]';
COMMENT ON COLUMN audited_costs.cache_read_usd_each IS 'The price of a token read from the cache; NULL without a price. [USD]';
COMMENT ON COLUMN audited_costs.cache_write_5m_usd_each IS 'The price of a token written to the cache for 5 minutes; NULL without a price. [USD]';
COMMENT ON COLUMN audited_costs.cache_write_1h_usd_each IS 'The price of a token written to the cache for 1 hour; NULL without a price. [USD]';
COMMENT ON COLUMN audited_costs.web_search_usd_each IS 'The price of a web search; NULL without a price. [USD]';

CREATE OR REPLACE VIEW call_costs AS
SELECT
    attempts.interaction_id,
    coalesce(attempts.lane, 'main') AS lane,
    attempts.turn,
    CASE audited_costs.kind
        WHEN 'compaction' THEN 'compaction'
        WHEN 'advisor_message' THEN 'advisor'
        ELSE coalesce(attempts.query_source, 'main')
    END AS source,
    audited_costs.*
FROM audited_costs
LEFT JOIN attempts ON audited_costs.session_id = attempts.session_id AND audited_costs.attempt_id = attempts.attempt_id;
COMMENT ON VIEW call_costs IS 'One row for each billed call, as in audited_costs, with its purpose.';
COMMENT ON COLUMN call_costs.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN call_costs.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN call_costs.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN call_costs.source IS 'The purpose of the call: `main`, `sub_agent`, `hook`, `classifier`, `memory`, `summary`; `compaction`: by the client or, as an iteration, by the provider; `advisor`: another model that the provider called.';
COMMENT ON COLUMN call_costs.session_id IS 'The ID of the session.';
COMMENT ON COLUMN call_costs.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN call_costs.iteration IS '0 if the response has no iterations; the number of the iteration, from 1, otherwise.';
COMMENT ON COLUMN call_costs.at_ns IS 'When the attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN call_costs.sent_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN call_costs.day IS 'The day on which the attempt was sent. [UTC]';
COMMENT ON COLUMN call_costs.kind IS 'What the model generated: `message`, `compaction` and others.';
COMMENT ON COLUMN call_costs.model IS 'The billed model.';
COMMENT ON COLUMN call_costs.canonical_model IS 'The canonical name of the billed model, even if an alias or a dated ID was billed.';
COMMENT ON COLUMN call_costs.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN call_costs.inference_geo IS 'Where inference ran, or NULL.';
COMMENT ON COLUMN call_costs.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN call_costs.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN call_costs.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN call_costs.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN call_costs.cache_write_tokens IS 'Input tokens that were written to the cache: the sum of the next two columns. [tokens]';
COMMENT ON COLUMN call_costs.cache_write_5m_tokens IS 'Input tokens that were written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN call_costs.cache_write_1h_tokens IS 'Input tokens that were written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN call_costs.web_search_requests IS 'The number of web searches that the provider ran. [requests]';
COMMENT ON COLUMN call_costs.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN call_costs.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN call_costs.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN call_costs.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN call_costs.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN call_costs.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';
COMMENT ON COLUMN call_costs.cost_usd IS 'The total cost; NULL, never 0, without a price. [USD]';
COMMENT ON COLUMN call_costs.cost_status IS '`exact`; `lower_bound`: a stream ended before its final counts, the provider ran something for which agentobs has no price, or records of the session are missing; `estimated`: see usage.note and prices.note; `unknown_model`: no price is known; `unpriced`: no price was looked up yet.';
COMMENT ON COLUMN call_costs.counts_status IS 'The part of cost_status that does not depend on the price: `exact`, `lower_bound` or `estimated`.';
COMMENT ON COLUMN call_costs.price_version IS 'The version of the prices that were used.';
COMMENT ON COLUMN call_costs.input_usd_each IS 'The price of a token of uncached input; NULL without a price. [USD]';
COMMENT ON COLUMN call_costs.output_usd_each IS 'The price of a token of output; NULL without a price. [USD]';
COMMENT ON COLUMN call_costs.cache_read_usd_each IS 'The price of a token read from the cache; NULL without a price. [USD]';
COMMENT ON COLUMN call_costs.cache_write_5m_usd_each IS 'The price of a token written to the cache for 5 minutes; NULL without a price. [USD]';
COMMENT ON COLUMN call_costs.cache_write_1h_usd_each IS 'The price of a token written to the cache for 1 hour; NULL without a price. [USD]';
COMMENT ON COLUMN call_costs.web_search_usd_each IS 'The price of a web search; NULL without a price. [USD]';

CREATE OR REPLACE VIEW cost_by_session AS
WITH spent AS (
    SELECT
        session_id,
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
    FROM audited_costs
    GROUP BY session_id
), named AS (
    SELECT session_id, arg_min(name, started_ns) AS name, min(started_ns) AS started_ns
    FROM session_starts
    GROUP BY session_id
)
SELECT spent.session_id, named.name, named.started_ns, spent.* EXCLUDE (session_id)
FROM spent
LEFT JOIN named ON spent.session_id = named.session_id;
COMMENT ON VIEW cost_by_session IS 'The cost of each session, including its sub-agents.';
COMMENT ON COLUMN cost_by_session.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cost_by_session.name IS 'The name given by the author, or NULL.';
COMMENT ON COLUMN cost_by_session.started_ns IS 'When the session started; NULL if unknown. [ns since 1970 UTC]';
COMMENT ON COLUMN cost_by_session.calls IS 'The number of billed calls; each iteration of a response counts as a call.';
COMMENT ON COLUMN cost_by_session.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_session.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN cost_by_session.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_session.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_session.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cost_by_session.cost_status IS 'The certainty of the sum: `exact`; `lower_bound`: some cost is not included; `estimated`: a part is estimated; `unknown_model`: no call has a price.';
COMMENT ON COLUMN cost_by_session.exact_calls IS 'The number of calls whose cost is exact.';
COMMENT ON COLUMN cost_by_session.lower_bound_calls IS 'The number of calls whose cost is a lower bound.';
COMMENT ON COLUMN cost_by_session.estimated_calls IS 'The number of calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_session.unpriced_calls IS 'The number of calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN cost_by_session.cache_write_5m_tokens IS 'Part of cache_write_tokens: written for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_session.cache_write_1h_tokens IS 'Part of cache_write_tokens: written for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_session.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_session.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_session.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_session.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_session.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_session.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_by_model AS
SELECT
    canonical_model,
    list_sort(list(DISTINCT model)) AS models,
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
FROM audited_costs
GROUP BY canonical_model;
COMMENT ON VIEW cost_by_model IS 'The cost of each model: one row for all IDs and aliases of a model.';
COMMENT ON COLUMN cost_by_model.canonical_model IS 'The canonical name of the model.';
COMMENT ON COLUMN cost_by_model.models IS 'The billed model IDs, as named by the provider.';
COMMENT ON COLUMN cost_by_model.calls IS 'The number of billed calls; each iteration of a response counts as a call.';
COMMENT ON COLUMN cost_by_model.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_model.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN cost_by_model.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_model.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_model.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cost_by_model.cost_status IS 'The certainty of the sum: `exact`; `lower_bound`: some cost is not included; `estimated`: a part is estimated; `unknown_model`: no call has a price.';
COMMENT ON COLUMN cost_by_model.exact_calls IS 'The number of calls whose cost is exact.';
COMMENT ON COLUMN cost_by_model.lower_bound_calls IS 'The number of calls whose cost is a lower bound.';
COMMENT ON COLUMN cost_by_model.estimated_calls IS 'The number of calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_model.unpriced_calls IS 'The number of calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN cost_by_model.cache_write_5m_tokens IS 'Part of cache_write_tokens: written for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_model.cache_write_1h_tokens IS 'Part of cache_write_tokens: written for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_model.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_model.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_model.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_model.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_model.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_model.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_by_day AS
SELECT
    day,
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
FROM audited_costs
GROUP BY day;
COMMENT ON VIEW cost_by_day IS 'The cost of each day (UTC), by the time when a call was sent.';
COMMENT ON COLUMN cost_by_day.day IS 'The day. [UTC]';
COMMENT ON COLUMN cost_by_day.calls IS 'The number of billed calls; each iteration of a response counts as a call.';
COMMENT ON COLUMN cost_by_day.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_day.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN cost_by_day.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_day.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_day.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cost_by_day.cost_status IS 'The certainty of the sum: `exact`; `lower_bound`: some cost is not included; `estimated`: a part is estimated; `unknown_model`: no call has a price.';
COMMENT ON COLUMN cost_by_day.exact_calls IS 'The number of calls whose cost is exact.';
COMMENT ON COLUMN cost_by_day.lower_bound_calls IS 'The number of calls whose cost is a lower bound.';
COMMENT ON COLUMN cost_by_day.estimated_calls IS 'The number of calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_day.unpriced_calls IS 'The number of calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN cost_by_day.cache_write_5m_tokens IS 'Part of cache_write_tokens: written for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_day.cache_write_1h_tokens IS 'Part of cache_write_tokens: written for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_day.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_day.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_day.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_day.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_day.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_day.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_by_agent AS
SELECT
    session_id,
    lane,
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
GROUP BY session_id, lane;
COMMENT ON VIEW cost_by_agent IS 'The cost of each agent of each session, sub-agents separately; the rows of a session add up to its cost.';
COMMENT ON COLUMN cost_by_agent.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cost_by_agent.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cost_by_agent.calls IS 'The number of billed calls; each iteration of a response counts as a call.';
COMMENT ON COLUMN cost_by_agent.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_agent.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN cost_by_agent.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_agent.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_agent.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cost_by_agent.cost_status IS 'The certainty of the sum: `exact`; `lower_bound`: some cost is not included; `estimated`: a part is estimated; `unknown_model`: no call has a price.';
COMMENT ON COLUMN cost_by_agent.exact_calls IS 'The number of calls whose cost is exact.';
COMMENT ON COLUMN cost_by_agent.lower_bound_calls IS 'The number of calls whose cost is a lower bound.';
COMMENT ON COLUMN cost_by_agent.estimated_calls IS 'The number of calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_agent.unpriced_calls IS 'The number of calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN cost_by_agent.cache_write_5m_tokens IS 'Part of cache_write_tokens: written for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_agent.cache_write_1h_tokens IS 'Part of cache_write_tokens: written for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_agent.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_agent.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_agent.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_agent.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_agent.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_agent.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_by_source AS
SELECT
    source,
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
GROUP BY source;
COMMENT ON VIEW cost_by_source IS 'The cost by purpose: the main agent, sub-agents, and auxiliary requests.';
COMMENT ON COLUMN cost_by_source.source IS 'The purpose: `main`, `sub_agent`, `compaction`, `advisor`, `hook`, `classifier` and others.';
COMMENT ON COLUMN cost_by_source.calls IS 'The number of billed calls; each iteration of a response counts as a call.';
COMMENT ON COLUMN cost_by_source.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_source.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN cost_by_source.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_source.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_source.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cost_by_source.cost_status IS 'The certainty of the sum: `exact`; `lower_bound`: some cost is not included; `estimated`: a part is estimated; `unknown_model`: no call has a price.';
COMMENT ON COLUMN cost_by_source.exact_calls IS 'The number of calls whose cost is exact.';
COMMENT ON COLUMN cost_by_source.lower_bound_calls IS 'The number of calls whose cost is a lower bound.';
COMMENT ON COLUMN cost_by_source.estimated_calls IS 'The number of calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_source.unpriced_calls IS 'The number of calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN cost_by_source.cache_write_5m_tokens IS 'Part of cache_write_tokens: written for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_source.cache_write_1h_tokens IS 'Part of cache_write_tokens: written for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_source.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_source.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_source.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_source.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_source.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_source.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_by_tool_turn AS
WITH tool_counts AS (
    SELECT session_id, attempt_id, name, count(*) AS tool_calls
    FROM tool_uses
    GROUP BY session_id, attempt_id, name
), tools AS (
    SELECT *, count(*) OVER (PARTITION BY session_id, attempt_id) > 1 AS is_shared
    FROM tool_counts
), spent AS (
    SELECT tools.name, tools.tool_calls, tools.is_shared, audited_costs.*
    FROM audited_costs
    LEFT JOIN tools ON audited_costs.session_id = tools.session_id AND audited_costs.attempt_id = tools.attempt_id
), counted AS (
    SELECT
        name,
        count(*) AS turns,
        count(*) FILTER (WHERE is_shared) AS shared_turns,
        sum(tool_calls) AS tool_calls
    FROM (SELECT DISTINCT session_id, attempt_id, name, tool_calls, is_shared FROM spent)
    GROUP BY name
), summed AS (
    SELECT
        name,
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
    FROM spent
    GROUP BY name
)
SELECT summed.name, counted.* EXCLUDE (name), summed.* EXCLUDE (name)
FROM summed
JOIN counted ON summed.name IS NOT DISTINCT FROM counted.name;
COMMENT ON VIEW cost_by_tool_turn IS 'The cost of turns that called a tool, by tool. The full cost of a turn that calls several tools counts for each of them.';
COMMENT ON COLUMN cost_by_tool_turn.name IS 'The name of the tool; NULL for responses without tool calls.';
COMMENT ON COLUMN cost_by_tool_turn.turns IS 'The number of responses with calls of the tool.';
COMMENT ON COLUMN cost_by_tool_turn.shared_turns IS 'The number of these responses that also call other tools; their cost is included for each tool.';
COMMENT ON COLUMN cost_by_tool_turn.tool_calls IS 'The number of calls of the tool in these responses.';
COMMENT ON COLUMN cost_by_tool_turn.calls IS 'The number of billed calls; each iteration of a response counts as a call.';
COMMENT ON COLUMN cost_by_tool_turn.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.cost_status IS 'The certainty of the sum: `exact`; `lower_bound`: some cost is not included; `estimated`: a part is estimated; `unknown_model`: no call has a price.';
COMMENT ON COLUMN cost_by_tool_turn.exact_calls IS 'The number of calls whose cost is exact.';
COMMENT ON COLUMN cost_by_tool_turn.lower_bound_calls IS 'The number of calls whose cost is a lower bound.';
COMMENT ON COLUMN cost_by_tool_turn.estimated_calls IS 'The number of calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_tool_turn.unpriced_calls IS 'The number of calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_5m_tokens IS 'Part of cache_write_tokens: written for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_1h_tokens IS 'Part of cache_write_tokens: written for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_certainty AS
SELECT
    cost_status,
    count(*) AS calls,
    sum(cost_usd) AS cost_usd,
    count(*) / sum(count(*)) OVER () AS share_of_calls,
    list_sort(list(DISTINCT canonical_model)) AS models
FROM audited_costs
GROUP BY cost_status;
COMMENT ON VIEW cost_certainty IS 'The certainty of costs: the number and the cost of calls, by status.';
COMMENT ON COLUMN cost_certainty.cost_status IS '`exact`, `lower_bound`, `estimated`, `unknown_model` or `unpriced`, as in audited_costs.';
COMMENT ON COLUMN cost_certainty.calls IS 'The number of billed calls with this status.';
COMMENT ON COLUMN cost_certainty.cost_usd IS 'The cost of these calls; NULL if they have no price. [USD]';
COMMENT ON COLUMN cost_certainty.share_of_calls IS 'The share of these calls in all billed calls, from 0 to 1.';
COMMENT ON COLUMN cost_certainty.models IS 'The canonical names of the models that were billed in these calls.';

CREATE OR REPLACE VIEW cache_efficiency AS
SELECT
    session_id,
    count(*) AS calls,
    sum(input_tokens) AS input_tokens,
    sum(cache_read_tokens) AS cache_read_tokens,
    sum(cache_write_tokens) AS cache_write_tokens,
    sum(cache_read_tokens) / nullif(sum(prompt_tokens), 0) AS hit_ratio,
    sum(read_saved_usd) AS read_saved_usd,
    sum(write_premium_usd) AS write_premium_usd,
    sum(read_saved_usd) - sum(write_premium_usd) AS saved_usd,
    sum(cost_usd) AS cost_usd,
    summed_status(cost_usd, cost_status) AS cost_status,
    count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls
FROM (
    SELECT
        *,
        input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens AS prompt_tokens,
        (cache_read_tokens * (input_usd_each - cache_read_usd_each))::DECIMAL(38, 12) AS read_saved_usd,
        (
            (cache_write_5m_tokens * (cache_write_5m_usd_each - input_usd_each))::DECIMAL(38, 12)
            + (cache_write_1h_tokens * (cache_write_1h_usd_each - input_usd_each))::DECIMAL(38, 12)
        ) AS write_premium_usd
    FROM audited_costs
)
GROUP BY session_id;
COMMENT ON VIEW cache_efficiency IS 'The effect of caching for each session: the share of input that was read from the cache, and the savings minus the extra cost of cache writes.';
COMMENT ON COLUMN cache_efficiency.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cache_efficiency.calls IS 'The number of billed calls.';
COMMENT ON COLUMN cache_efficiency.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cache_efficiency.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cache_efficiency.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN cache_efficiency.hit_ratio IS 'The share of all input that was read from the cache, from 0 to 1; NULL without input.';
COMMENT ON COLUMN cache_efficiency.read_saved_usd IS 'The savings from cache reads: their cost as uncached input, minus their actual cost. [USD]';
COMMENT ON COLUMN cache_efficiency.write_premium_usd IS 'The extra cost of cache writes compared with uncached input. [USD]';
COMMENT ON COLUMN cache_efficiency.saved_usd IS 'The net savings: read_saved_usd minus write_premium_usd; negative if caching cost more than it saved. [USD]';
COMMENT ON COLUMN cache_efficiency.cost_usd IS 'The cost of the calls that have a price; NULL, never 0, if no call has a price. [USD]';
COMMENT ON COLUMN cache_efficiency.cost_status IS 'The certainty of the costs, as in cost_by_session.';
COMMENT ON COLUMN cache_efficiency.unpriced_calls IS 'The number of calls without a price, which are not included in the costs.';

CREATE OR REPLACE VIEW cached_calls AS
WITH last AS (
    SELECT
        session_id,
        attempt_id,
        arg_max(
            {
                'at_ns': at_ns,
                'model': model,
                'input_tokens': input_tokens,
                'cache_read_tokens': cache_read_tokens,
                'cache_write_5m_tokens': cache_write_5m_tokens,
                'cache_write_1h_tokens': cache_write_1h_tokens,
                'cached_tokens': cache_read_tokens::HUGEINT + cache_write_tokens,
                'input_usd_each': input_usd_each,
                'cache_read_usd_each': cache_read_usd_each,
                'cache_write_5m_usd_each': cache_write_5m_usd_each,
                'cache_write_1h_usd_each': cache_write_1h_usd_each,
                'cost_status': cost_status
            },
            iteration
        ) AS counts
    FROM costs
    GROUP BY session_id, attempt_id
), known AS (
    SELECT
        last.session_id,
        attempts.lane,
        last.attempt_id,
        attempts.turn,
        unnest(last.counts),
        coalesce(prefixes.compared_attempt_id, attempts.continues_attempt_id) AS previous_attempt_id,
        prefixes.changed,
        prefixes.changed_message,
        prefixes.miss_reason,
        prefixes.missed_tokens
    FROM last
    JOIN attempts ON last.session_id = attempts.session_id AND last.attempt_id = attempts.attempt_id
    LEFT JOIN prefixes ON last.session_id = prefixes.session_id AND last.attempt_id = prefixes.attempt_id
)
SELECT
    now.session_id,
    now.lane,
    now.attempt_id,
    now.at_ns,
    now.model,
    now.input_tokens,
    now.cache_read_tokens,
    now.cache_write_5m_tokens,
    now.cache_write_1h_tokens,
    now.cached_tokens,
    now.input_usd_each,
    now.cache_read_usd_each,
    now.cache_write_5m_usd_each,
    now.cache_write_1h_usd_each,
    now.cost_status,
    now.previous_attempt_id,
    now.at_ns - before.at_ns AS gap_ns,
    before.cached_tokens AS previous_cached_tokens,
    CASE
        WHEN now.cache_write_1h_tokens > 0 OR before.cache_write_1h_tokens > 0 THEN 3600000000000
        ELSE 300000000000
    END AS lifetime_ns,
    now.changed,
    now.changed_message,
    now.miss_reason,
    now.missed_tokens,
    now.turn,
    before.turn AS previous_turn
FROM known AS now
LEFT JOIN known AS before
    ON now.session_id = before.session_id AND now.previous_attempt_id = before.attempt_id;
COMMENT ON VIEW cached_calls IS 'Cache reads and writes of each call, with the previous call that it continues. For a response with iterations, only the last iteration is included.';
COMMENT ON COLUMN cached_calls.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cached_calls.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cached_calls.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN cached_calls.at_ns IS 'When the call was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN cached_calls.model IS 'The billed model.';
COMMENT ON COLUMN cached_calls.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cached_calls.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN cached_calls.cache_write_5m_tokens IS 'Input tokens that were written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN cached_calls.cache_write_1h_tokens IS 'Input tokens that were written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN cached_calls.cached_tokens IS 'Tokens in the cache after the call: read plus written. [tokens]';
COMMENT ON COLUMN cached_calls.input_usd_each IS 'The price of a token of uncached input. [USD]';
COMMENT ON COLUMN cached_calls.cache_read_usd_each IS 'The price of a token that is read from the cache. [USD]';
COMMENT ON COLUMN cached_calls.cache_write_5m_usd_each IS 'The price of a token that is written to the cache for 5 minutes. [USD]';
COMMENT ON COLUMN cached_calls.cache_write_1h_usd_each IS 'The price of a token that is written to the cache for 1 hour. [USD]';
COMMENT ON COLUMN cached_calls.cost_status IS 'The certainty of the cost of the call, as in costs.';
COMMENT ON COLUMN cached_calls.previous_attempt_id IS 'The previous attempt, whose prompt this call continues or was compared with; or NULL.';
COMMENT ON COLUMN cached_calls.gap_ns IS 'Time between the previous attempt and this call; NULL without a previous attempt. [ns]';
COMMENT ON COLUMN cached_calls.previous_cached_tokens IS 'Tokens in the cache after the previous attempt; NULL without a previous attempt. [tokens]';
COMMENT ON COLUMN cached_calls.lifetime_ns IS 'How long the cache keeps the prompt: 1 hour if this call or the previous attempt wrote it for 1 hour, else 5 minutes. [ns]';
COMMENT ON COLUMN cached_calls.changed IS 'The first zone that changed, as in prefixes; NULL if no zone changed, or if unknown.';
COMMENT ON COLUMN cached_calls.changed_message IS 'The number of the message that changed, from 1; NULL unless `changed` is `messages`.';
COMMENT ON COLUMN cached_calls.miss_reason IS 'The reason for the cache miss, as reported by the provider, or NULL.';
COMMENT ON COLUMN cached_calls.missed_tokens IS 'The estimated number of missed tokens, as reported by the provider; NULL if it does not report them. [tokens]';
COMMENT ON COLUMN cached_calls.turn IS 'The turn of the request in its lane; NULL if unknown.';
COMMENT ON COLUMN cached_calls.previous_turn IS 'The turn of the previous attempt in its lane; NULL without a previous attempt, or if unknown.';

CREATE OR REPLACE VIEW zone_changes AS
SELECT
    now.session_id,
    now.attempt_id,
    now.compared_attempt_id,
    attempts.turn,
    compared.turn AS compared_turn,
    nullif(concat_ws(', ',
        CASE WHEN now.betas IS DISTINCT FROM before.betas THEN 'betas' END,
        CASE WHEN now.model IS DISTINCT FROM before.model THEN 'model' END,
        CASE WHEN now.tools IS DISTINCT FROM before.tools THEN 'tools' END,
        CASE WHEN now.system IS DISTINCT FROM before.system THEN 'system' END,
        CASE WHEN now.parameters IS DISTINCT FROM before.parameters THEN 'parameters' END,
        CASE WHEN now.system_dynamic IS DISTINCT FROM before.system_dynamic THEN 'system_dynamic' END,
        -- If this prompt has fewer messages than the earlier prompt, `repeated` is NULL, and no change is reported.
        CASE WHEN now.repeated <> before.messages THEN 'messages' END
    ), '') AS zones_changed
FROM zones AS now
JOIN zones AS before
    ON now.session_id = before.session_id AND now.compared_attempt_id = before.attempt_id
JOIN attempts ON now.session_id = attempts.session_id AND now.attempt_id = attempts.attempt_id
JOIN attempts AS compared
    ON before.session_id = compared.session_id AND before.attempt_id = compared.attempt_id
-- Logs of Claude Code contain only parts of the requests, so that no zone is known to be unchanged.
ANTI JOIN (
    SELECT session_id FROM session_starts WHERE source = 'claude-code'
) AS rebuilt
    ON now.session_id = rebuilt.session_id;
COMMENT ON VIEW zone_changes IS 'Changes between consecutive prompts, derived from the digests of their zones. Requests that were reconstructed from a log of a client have no row, because the log contains only parts of them.';
COMMENT ON COLUMN zone_changes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN zone_changes.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN zone_changes.compared_attempt_id IS 'The earlier attempt whose prompt this prompt continues, or the attempt with the most similar prompt.';
COMMENT ON COLUMN zone_changes.turn IS 'The turn of the attempt in its lane, or NULL.';
COMMENT ON COLUMN zone_changes.compared_turn IS 'The turn of the earlier attempt, or NULL.';
COMMENT ON COLUMN zone_changes.zones_changed IS 'The names of all zones that changed, in the order of the prompt, separated by commas: `betas`, `model`, `tools`, `system`, `parameters`, `system_dynamic`, `messages`; NULL if no zone changed.';

CREATE OR REPLACE VIEW repaid_calls AS
WITH missed AS (
    SELECT
        * EXCLUDE (missed_tokens),
        -- `try_cast`, here and below: invalid counts have no cost, but do not make queries fail.
        try_cast(
            coalesce(missed_tokens, greatest(previous_cached_tokens - cache_read_tokens, 0)) AS BIGINT
        ) AS missed_tokens
    FROM cached_calls
    WHERE previous_cached_tokens > 0
), split AS (
    -- Missed tokens are assigned to cache writes for 1 hour first, then for 5 minutes, and the rest to uncached input.
    SELECT
        missed.*,
        least(missed_tokens, greatest(cache_write_1h_tokens, 0)) AS again_1h,
        least(missed_tokens - again_1h, greatest(cache_write_5m_tokens, 0)) AS again_5m,
        least(missed_tokens - again_1h - again_5m, greatest(input_tokens, 0)) AS again_input,
        miss_reason IS NOT NULL
            AND miss_reason NOT IN ('unavailable', 'previous_message_not_found') AS is_reported,
        coalesce(compactions.compacted_ns > at_ns - gap_ns, false) AS is_compacted
    FROM missed
    ASOF LEFT JOIN (SELECT session_id, lane, at_ns AS compacted_ns FROM events WHERE kind = 'compaction') AS compactions
        ON missed.session_id = compactions.session_id AND missed.lane = compactions.lane
        AND missed.at_ns >= compactions.compacted_ns
    WHERE missed_tokens > 0
)
SELECT
    split.session_id,
    split.lane,
    split.attempt_id,
    at_ns,
    split.model,
    gap_ns,
    again_1h + again_5m + again_input AS missed_tokens,
    (
        (again_1h * (cache_write_1h_usd_each - cache_read_usd_each))::DECIMAL(38, 12)
        + (again_5m * (cache_write_5m_usd_each - cache_read_usd_each))::DECIMAL(38, 12)
        + (again_input * (input_usd_each - cache_read_usd_each))::DECIMAL(38, 12)
    ) AS wasted_usd,
    CASE
        WHEN is_reported THEN miss_reason
        WHEN changed IS NOT NULL THEN changed || '_changed'
        WHEN is_compacted THEN 'compaction'
        WHEN gap_ns > lifetime_ns THEN 'expired'
        ELSE 'unknown'
    END AS reason,
    changed_message,
    CASE
        WHEN is_reported THEN 'provider'
        WHEN changed IS NOT NULL THEN 'request'
        WHEN is_compacted THEN 'event'
        WHEN gap_ns > lifetime_ns THEN 'gap'
    END AS reason_source,
    zones_changed,
    split.turn,
    split.previous_turn AS compared_turn,
    previous_attempt_id AS compared_attempt_id
FROM split
LEFT JOIN zone_changes
    ON split.session_id = zone_changes.session_id
    AND split.attempt_id = zone_changes.attempt_id
    AND split.previous_attempt_id = zone_changes.compared_attempt_id;
COMMENT ON VIEW repaid_calls IS 'Calls in which tokens were paid for again although they were in the cache after the previous call: the cache misses, and the first requests after compactions. cache_misses and cache_losses separate them.';
COMMENT ON COLUMN repaid_calls.session_id IS 'The ID of the session.';
COMMENT ON COLUMN repaid_calls.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN repaid_calls.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN repaid_calls.at_ns IS 'When the call was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN repaid_calls.model IS 'The billed model.';
COMMENT ON COLUMN repaid_calls.gap_ns IS 'Time between the previous call and this call. [ns]';
COMMENT ON COLUMN repaid_calls.missed_tokens IS 'Tokens that were paid for again: as reported by the provider, otherwise the tokens in the cache minus the tokens that were read; never more than the call wrote or sent as uncached input. [tokens]';
COMMENT ON COLUMN repaid_calls.wasted_usd IS 'The estimated extra cost, compared with reading these tokens from the cache; NULL without a price. [USD]';
COMMENT ON COLUMN repaid_calls.reason IS '`model_changed`, `tools_changed`, `system_changed`, `parameters_changed`, `messages_changed`, `betas_changed` or `system_dynamic_changed`: that zone changed; `compaction`: the client shortened the conversation before the call, and no change of the request is known; `expired`: the call was sent after the lifetime of the cache; `unknown`: no change of the request is known, and the cache had not expired; or another reason that the provider reports.';
COMMENT ON COLUMN repaid_calls.changed_message IS 'The number of the first message that changed, from 1, or NULL.';
COMMENT ON COLUMN repaid_calls.reason_source IS 'How the reason was determined: `provider`: from the diagnostics of the provider; `request`: from the first zone of the request that changed; `event`: from the event of a compaction; `gap`: from the time between the calls; NULL if the reason is unknown.';
COMMENT ON COLUMN repaid_calls.zones_changed IS 'The names of all zones of the request that changed, as in zone_changes; NULL if no zone changed, or if unknown.';
COMMENT ON COLUMN repaid_calls.turn IS 'The turn of the request in its lane; NULL if unknown.';
COMMENT ON COLUMN repaid_calls.compared_turn IS 'The turn of the earlier request with which it is compared; NULL if unknown.';
COMMENT ON COLUMN repaid_calls.compared_attempt_id IS 'The attempt of that earlier request.';

CREATE OR REPLACE VIEW compacted_requests AS
SELECT session_id, request.lane, request.turn, request.attempt_id, request.started_ns
FROM (
    SELECT DISTINCT
        attempts.session_id,
        arg_min(
            {'lane': attempts.lane, 'turn': attempts.turn, 'attempt_id': attempt_id, 'started_ns': started_ns},
            (started_ns, attempt_id)
        ) AS request
    FROM attempts
    -- Not a semi join: DuckDB would read the rows of all sessions for a query about one session.
    JOIN usage USING (session_id, attempt_id)
    JOIN events ON attempts.session_id = events.session_id AND attempts.lane = events.lane
    WHERE
        attempts.makes_turns AND coalesce(attempts.query_source IN ('main', 'sub_agent'), true)
        AND events.kind = 'compaction' AND attempts.started_ns >= events.at_ns
    GROUP BY attempts.session_id, attempts.lane, events.at_ns
);
COMMENT ON VIEW compacted_requests IS 'The first request of a lane after one or more compactions.';
COMMENT ON COLUMN compacted_requests.session_id IS 'The ID of the session.';
COMMENT ON COLUMN compacted_requests.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN compacted_requests.turn IS 'The turn of the request in its lane; NULL if unknown.';
COMMENT ON COLUMN compacted_requests.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN compacted_requests.started_ns IS 'When the request was sent. [ns since 1970 UTC]';

CREATE OR REPLACE VIEW cache_losses AS
WITH found AS (
    SELECT *, true AS is_miss FROM repaid_calls
    UNION ALL BY NAME
    SELECT
        compacted.session_id,
        compacted.attempt_id,
        any_value(compacted.lane) AS lane,
        any_value(compacted.turn) AS turn,
        any_value(compacted.started_ns) AS at_ns,
        any_value(costs.model) AS model,
        'compaction' AS reason,
        'event' AS reason_source,
        try_cast(sum(cache_write_tokens) AS BIGINT) AS missed_tokens,
        CASE WHEN count(cost_usd) = count(*) THEN sum(
            cache_write_5m_usd + cache_write_1h_usd
            - (cache_write_5m_tokens + cache_write_1h_tokens) * cache_read_usd_each
        )::DECIMAL(38, 12) END AS wasted_usd,
        false AS is_miss
    FROM compacted_requests AS compacted
    JOIN costs ON compacted.session_id = costs.session_id AND compacted.attempt_id = costs.attempt_id
    GROUP BY compacted.session_id, compacted.attempt_id
)
SELECT
    session_id,
    any_value(lane) AS lane,
    any_value(turn) AS turn,
    attempt_id,
    min(at_ns) AS at_ns,
    -- A first request after a compaction counts as such, with the tokens and the cost that it paid again if it did.
    CASE WHEN bool_and(is_miss) THEN any_value(reason) ELSE 'compaction' END AS reason,
    CASE WHEN bool_and(is_miss) THEN any_value(reason_source) ELSE 'event' END AS reason_source,
    coalesce(any_value(missed_tokens) FILTER (WHERE is_miss), any_value(missed_tokens)) AS missed_tokens,
    CASE
        WHEN bool_or(is_miss) THEN any_value(wasted_usd) FILTER (WHERE is_miss) ELSE any_value(wasted_usd)
    END AS wasted_usd,
    any_value(model) AS model,
    any_value(gap_ns) AS gap_ns,
    any_value(changed_message) AS changed_message,
    any_value(zones_changed) AS zones_changed,
    any_value(compared_turn) AS compared_turn,
    any_value(compared_attempt_id) AS compared_attempt_id
FROM found
GROUP BY session_id, attempt_id;
COMMENT ON VIEW cache_losses IS 'Calls that paid more because their prompts were not read from the cache: each cache miss, and each first request of a lane after a compaction. Each call has one row, and the first request after a compaction counts only as such.';
COMMENT ON COLUMN cache_losses.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cache_losses.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cache_losses.turn IS 'The turn of the request in its lane; NULL if unknown.';
COMMENT ON COLUMN cache_losses.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN cache_losses.at_ns IS 'When the call was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN cache_losses.reason IS '`compaction` for the first request after a compaction; else the reason of the cache miss, as in cache_misses.';
COMMENT ON COLUMN cache_losses.reason_source IS '`event` for the first request after a compaction; else how the reason was determined, as in cache_misses.';
COMMENT ON COLUMN cache_losses.missed_tokens IS 'Tokens that were paid for again, as in cache_misses; after a compaction without such tokens, all tokens that the call wrote to the cache, which may be none. [tokens]';
COMMENT ON COLUMN cache_losses.wasted_usd IS 'The estimated extra cost, compared with reading these tokens from the cache; NULL without a price. [USD]';
COMMENT ON COLUMN cache_losses.model IS 'The billed model.';
COMMENT ON COLUMN cache_losses.gap_ns IS 'Time between the previous call and this call; NULL after a compaction without tokens that were paid for again. [ns]';
COMMENT ON COLUMN cache_losses.changed_message IS 'The number of the first message that changed, from 1, or NULL.';
COMMENT ON COLUMN cache_losses.zones_changed IS 'The names of all zones of the request that changed, as in zone_changes; NULL if no zone changed, or if unknown.';
COMMENT ON COLUMN cache_losses.compared_turn IS 'The turn of the earlier request with which it is compared; NULL if unknown.';
COMMENT ON COLUMN cache_losses.compared_attempt_id IS 'The attempt of that earlier request; NULL if unknown.';

CREATE OR REPLACE VIEW cache_misses AS
SELECT repaid.*
FROM repaid_calls AS repaid
-- Not an anti join: DuckDB would read the rows of all sessions for a query about one session.
LEFT JOIN compacted_requests AS compacted
    ON repaid.session_id = compacted.session_id AND repaid.attempt_id = compacted.attempt_id
WHERE compacted.attempt_id IS NULL AND repaid.reason <> 'compaction';
COMMENT ON VIEW cache_misses IS 'Calls in which tokens were paid for again although they were in the cache after the previous call, with the reason. The first request after a compaction is not a cache miss, because the cache cannot contain the shortened conversation; cache_losses has it.';
COMMENT ON COLUMN cache_misses.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cache_misses.lane IS 'The lane of the agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cache_misses.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN cache_misses.at_ns IS 'When the call was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN cache_misses.model IS 'The billed model.';
COMMENT ON COLUMN cache_misses.gap_ns IS 'Time between the previous call and this call. [ns]';
COMMENT ON COLUMN cache_misses.missed_tokens IS 'Tokens that were paid for again: as reported by the provider, otherwise the tokens in the cache minus the tokens that were read; never more than the call wrote or sent as uncached input. [tokens]';
COMMENT ON COLUMN cache_misses.wasted_usd IS 'The estimated extra cost, compared with reading these tokens from the cache; NULL without a price. [USD]';
COMMENT ON COLUMN cache_misses.reason IS '`model_changed`, `tools_changed`, `system_changed`, `parameters_changed`, `messages_changed`, `betas_changed` or `system_dynamic_changed`: that zone changed; `expired`: the call was sent after the lifetime of the cache; `unknown`: no change of the request is known, and the cache had not expired; or another reason that the provider reports.';
COMMENT ON COLUMN cache_misses.changed_message IS 'The number of the first message that changed, from 1, or NULL.';
COMMENT ON COLUMN cache_misses.zones_changed IS 'The names of all zones of the request that changed, as in zone_changes; NULL if no zone changed, or if unknown.';
COMMENT ON COLUMN cache_misses.turn IS 'The turn of the request in its lane; NULL if unknown.';
COMMENT ON COLUMN cache_misses.compared_turn IS 'The turn of the earlier request with which it is compared; NULL if unknown.';
COMMENT ON COLUMN cache_misses.compared_attempt_id IS 'The attempt of that earlier request.';
COMMENT ON COLUMN cache_misses.reason_source IS 'How the reason was determined: `provider`: from the diagnostics of the provider; `request`: from the first zone of the request that changed; `gap`: from the time between the calls; NULL if the reason is unknown.';

CREATE OR REPLACE VIEW cache_lifetimes AS
WITH reused AS (
    SELECT
        *,
        try_cast(CASE
            -- The cache had expired, and no change is known. Before the expiry, these tokens would have been read.
            WHEN gap_ns > lifetime_ns AND changed IS NULL THEN least(previous_cached_tokens, cached_tokens)
            ELSE cache_read_tokens
        END AS BIGINT) AS reusable_tokens
    FROM cached_calls
    WHERE cached_tokens > 0
), held AS (
    SELECT
        *,
        CASE WHEN coalesce(gap_ns, 0) <= 300000000000 THEN reusable_tokens ELSE 0 END AS read_5m,
        CASE WHEN coalesce(gap_ns, 0) <= 3600000000000 THEN reusable_tokens ELSE 0 END AS read_1h
    FROM reused
), priced AS (
    SELECT
        session_id,
        gap_ns,
        (
            (cache_read_tokens * cache_read_usd_each)::DECIMAL(38, 12)
            + (cache_write_5m_tokens * cache_write_5m_usd_each)::DECIMAL(38, 12)
            + (cache_write_1h_tokens * cache_write_1h_usd_each)::DECIMAL(38, 12)
        ) AS cache_usd,
        (
            (read_5m * cache_read_usd_each)::DECIMAL(38, 12)
            + (try_cast(cached_tokens - read_5m AS BIGINT) * cache_write_5m_usd_each)::DECIMAL(38, 12)
        ) AS cache_5m_usd,
        (
            (read_1h * cache_read_usd_each)::DECIMAL(38, 12)
            + (try_cast(cached_tokens - read_1h AS BIGINT) * cache_write_1h_usd_each)::DECIMAL(38, 12)
        ) AS cache_1h_usd,
        TRUE AS is_call
    FROM held
    UNION ALL
    -- Iterations of a response follow each other immediately, so cache reads of all but the last one do not depend on
    -- the lifetime.
    SELECT
        costs.session_id,
        NULL AS gap_ns,
        (
            (cache_read_tokens * cache_read_usd_each)::DECIMAL(38, 12)
            + (cache_write_5m_tokens * cache_write_5m_usd_each)::DECIMAL(38, 12)
            + (cache_write_1h_tokens * cache_write_1h_usd_each)::DECIMAL(38, 12)
        ) AS cache_usd,
        (
            (cache_read_tokens * cache_read_usd_each)::DECIMAL(38, 12)
            + (try_cast(cache_write_tokens AS BIGINT) * cache_write_5m_usd_each)::DECIMAL(38, 12)
        ) AS cache_5m_usd,
        (
            (cache_read_tokens * cache_read_usd_each)::DECIMAL(38, 12)
            + (try_cast(cache_write_tokens AS BIGINT) * cache_write_1h_usd_each)::DECIMAL(38, 12)
        ) AS cache_1h_usd,
        FALSE AS is_call
    FROM costs
    JOIN (
        SELECT session_id, attempt_id, max(iteration) AS last_iteration
        FROM costs
        GROUP BY session_id, attempt_id
        HAVING count(*) > 1
    ) AS several USING (session_id, attempt_id)
    WHERE costs.iteration < last_iteration AND cache_read_tokens + cache_write_tokens > 0
)
SELECT
    session_id,
    count(*) FILTER (WHERE is_call) AS calls,
    count(*) FILTER (WHERE gap_ns > 300000000000) AS gaps_over_5m,
    count(*) FILTER (WHERE gap_ns > 3600000000000) AS gaps_over_1h,
    sum(cache_usd) AS cache_usd,
    sum(cache_5m_usd) AS cache_5m_usd,
    sum(cache_1h_usd) AS cache_1h_usd,
    CASE sign(sum(cache_5m_usd) - sum(cache_1h_usd))
        WHEN -1 THEN '5m'
        WHEN 1 THEN '1h'
        WHEN 0 THEN 'either'
    END AS better,
    count(*) FILTER (WHERE cache_usd IS NULL AND is_call) AS unpriced_calls
FROM priced
GROUP BY session_id;
COMMENT ON VIEW cache_lifetimes IS 'The actual cache cost of each session, and its estimated cost with a cache lifetime of 5 minutes or 1 hour, which depends on the time between calls.';
COMMENT ON COLUMN cache_lifetimes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cache_lifetimes.calls IS 'The number of calls that read from or wrote to the cache.';
COMMENT ON COLUMN cache_lifetimes.gaps_over_5m IS 'The number of calls that were sent more than 5 minutes after the call that they continue.';
COMMENT ON COLUMN cache_lifetimes.gaps_over_1h IS 'The number of calls that were sent more than 1 hour after the call that they continue.';
COMMENT ON COLUMN cache_lifetimes.cache_usd IS 'The actual cost of cache reads and writes; NULL if no call has a price. [USD]';
COMMENT ON COLUMN cache_lifetimes.cache_5m_usd IS 'The cost of cache reads and writes with a lifetime of 5 minutes. [USD]';
COMMENT ON COLUMN cache_lifetimes.cache_1h_usd IS 'The cost of cache reads and writes with a lifetime of 1 hour. [USD]';
COMMENT ON COLUMN cache_lifetimes.better IS 'The cheaper lifetime, `5m` or `1h`; `either` if the cost is equal; NULL without a price.';
COMMENT ON COLUMN cache_lifetimes.unpriced_calls IS 'The number of calls without a price, which are not included in the costs.';
