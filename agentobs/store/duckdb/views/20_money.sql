-- Costs by model, session, day, agent, source and tool, and the effect of caching.
--
-- Each sum has its certainty in another column. Sums are exact decimals; if nothing has a price a sum is NULL,
-- never 0.

-- How sure the sum of what some calls cost is: as sure as the least sure of them.
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
COMMENT ON VIEW incomplete_sessions IS 'Sessions with missing data: records were dropped, or a segment that contains them is damaged.';
COMMENT ON COLUMN incomplete_sessions.session_id IS 'The session.';

CREATE OR REPLACE VIEW audited_costs AS
SELECT
    * REPLACE (
        CASE
            WHEN cost_status = 'exact' AND session_id IN (SELECT session_id FROM incomplete_sessions) THEN 'lower_bound'
            ELSE cost_status
        END AS cost_status
    )
FROM costs;
COMMENT ON VIEW audited_costs IS 'One row for each billed call, as in costs; where records of its session are missing, a call is a lower bound at best. What is summed up below is summed up from here.';
COMMENT ON COLUMN audited_costs.session_id IS 'The session.';
COMMENT ON COLUMN audited_costs.attempt_id IS 'The attempt.';
COMMENT ON COLUMN audited_costs.iteration IS '0 if the response has no iterations, else their number from 1.';
COMMENT ON COLUMN audited_costs.at_ns IS 'When the attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN audited_costs.sent_at IS 'The same instant, for people. [UTC]';
COMMENT ON COLUMN audited_costs.day IS 'The day of it. [UTC]';
COMMENT ON COLUMN audited_costs.kind IS 'What was sampled: `message`, `compaction` and others.';
COMMENT ON COLUMN audited_costs.model IS 'The model that is billed.';
COMMENT ON COLUMN audited_costs.canonical_model IS 'The canonical name of the model, whatever alias or dated ID was billed.';
COMMENT ON COLUMN audited_costs.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN audited_costs.inference_geo IS 'Where inference ran, or NULL.';
COMMENT ON COLUMN audited_costs.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN audited_costs.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN audited_costs.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN audited_costs.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN audited_costs.cache_write_tokens IS 'Input written to the cache: the sum of the next two. [tokens]';
COMMENT ON COLUMN audited_costs.cache_write_5m_tokens IS 'Input written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN audited_costs.cache_write_1h_tokens IS 'Input written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN audited_costs.web_search_requests IS 'Web searches that the provider ran. [requests]';
COMMENT ON COLUMN audited_costs.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN audited_costs.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN audited_costs.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN audited_costs.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN audited_costs.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN audited_costs.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';
COMMENT ON COLUMN audited_costs.cost_usd IS 'The total; NULL, never 0, without a price. [USD]';
COMMENT ON COLUMN audited_costs.cost_status IS '`exact`; `lower_bound`: a stream ended before its last counts, the provider ran something that has no price here, or records of the session are missing; `estimated`: see usage.note and prices.note; `unknown_model`: no price is known; `unpriced`: no price was looked up yet.';
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
COMMENT ON VIEW call_costs IS 'One row for each billed call, as in audited_costs, with its source.';
COMMENT ON COLUMN call_costs.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN call_costs.lane IS 'The agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN call_costs.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN call_costs.source IS 'The purpose: `main`, `sub_agent`, `hook`, `classifier`, `memory`, `summary`; `compaction`: the client''s or, as an iteration, the provider''s; `advisor`: another model that the provider called.';
COMMENT ON COLUMN call_costs.session_id IS 'The session.';
COMMENT ON COLUMN call_costs.attempt_id IS 'The attempt.';
COMMENT ON COLUMN call_costs.iteration IS '0 if the response has no iterations, else their number from 1.';
COMMENT ON COLUMN call_costs.at_ns IS 'When the attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN call_costs.sent_at IS 'The same instant, for people. [UTC]';
COMMENT ON COLUMN call_costs.day IS 'The day of it. [UTC]';
COMMENT ON COLUMN call_costs.kind IS 'What was sampled: `message`, `compaction` and others.';
COMMENT ON COLUMN call_costs.model IS 'The model that is billed.';
COMMENT ON COLUMN call_costs.canonical_model IS 'The canonical name of the model, whatever alias or dated ID was billed.';
COMMENT ON COLUMN call_costs.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN call_costs.inference_geo IS 'Where inference ran, or NULL.';
COMMENT ON COLUMN call_costs.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN call_costs.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN call_costs.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN call_costs.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN call_costs.cache_write_tokens IS 'Input written to the cache: the sum of the next two. [tokens]';
COMMENT ON COLUMN call_costs.cache_write_5m_tokens IS 'Input written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN call_costs.cache_write_1h_tokens IS 'Input written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN call_costs.web_search_requests IS 'Web searches that the provider ran. [requests]';
COMMENT ON COLUMN call_costs.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN call_costs.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN call_costs.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN call_costs.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN call_costs.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN call_costs.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';
COMMENT ON COLUMN call_costs.cost_usd IS 'The total; NULL, never 0, without a price. [USD]';
COMMENT ON COLUMN call_costs.cost_status IS '`exact`; `lower_bound`: a stream ended before its last counts, the provider ran something that has no price here, or records of the session are missing; `estimated`: see usage.note and prices.note; `unknown_model`: no price is known; `unpriced`: no price was looked up yet.';
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
COMMENT ON VIEW cost_by_session IS 'What each session cost, its sub-agents included.';
COMMENT ON COLUMN cost_by_session.session_id IS 'The session.';
COMMENT ON COLUMN cost_by_session.name IS 'What its author called it, or NULL.';
COMMENT ON COLUMN cost_by_session.started_ns IS 'When it started; NULL where that was not recorded. [ns since 1970 UTC]';
COMMENT ON COLUMN cost_by_session.calls IS 'Billed calls; a response with iterations counts each of them.';
COMMENT ON COLUMN cost_by_session.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_session.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN cost_by_session.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_session.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_session.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cost_by_session.cost_status IS 'How sure the sum is: `exact`; `lower_bound`: something is left out; `estimated`: a part of it is; `unknown_model`: nothing has a price.';
COMMENT ON COLUMN cost_by_session.exact_calls IS 'Calls whose cost is exact.';
COMMENT ON COLUMN cost_by_session.lower_bound_calls IS 'Calls that cost at least what is summed.';
COMMENT ON COLUMN cost_by_session.estimated_calls IS 'Calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_session.unpriced_calls IS 'Calls without a price, which cost_usd leaves out.';
COMMENT ON COLUMN cost_by_session.cache_write_5m_tokens IS 'Part of cache_write_tokens: for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_session.cache_write_1h_tokens IS 'Part of cache_write_tokens: for 1 hour. [tokens]';
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
COMMENT ON VIEW cost_by_model IS 'The cost of each model: one row for all IDs and aliases of the same model.';
COMMENT ON COLUMN cost_by_model.canonical_model IS 'The one name of the model.';
COMMENT ON COLUMN cost_by_model.models IS 'The billed IDs, as the provider named them.';
COMMENT ON COLUMN cost_by_model.calls IS 'Billed calls; a response with iterations counts each of them.';
COMMENT ON COLUMN cost_by_model.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_model.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN cost_by_model.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_model.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_model.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cost_by_model.cost_status IS 'How sure the sum is: `exact`; `lower_bound`: something is left out; `estimated`: a part of it is; `unknown_model`: nothing has a price.';
COMMENT ON COLUMN cost_by_model.exact_calls IS 'Calls whose cost is exact.';
COMMENT ON COLUMN cost_by_model.lower_bound_calls IS 'Calls that cost at least what is summed.';
COMMENT ON COLUMN cost_by_model.estimated_calls IS 'Calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_model.unpriced_calls IS 'Calls without a price, which cost_usd leaves out.';
COMMENT ON COLUMN cost_by_model.cache_write_5m_tokens IS 'Part of cache_write_tokens: for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_model.cache_write_1h_tokens IS 'Part of cache_write_tokens: for 1 hour. [tokens]';
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
COMMENT ON VIEW cost_by_day IS 'What each day cost. Days are those of UTC, by when a call was sent.';
COMMENT ON COLUMN cost_by_day.day IS 'The day. [UTC]';
COMMENT ON COLUMN cost_by_day.calls IS 'Billed calls; a response with iterations counts each of them.';
COMMENT ON COLUMN cost_by_day.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_day.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN cost_by_day.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_day.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_day.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cost_by_day.cost_status IS 'How sure the sum is: `exact`; `lower_bound`: something is left out; `estimated`: a part of it is; `unknown_model`: nothing has a price.';
COMMENT ON COLUMN cost_by_day.exact_calls IS 'Calls whose cost is exact.';
COMMENT ON COLUMN cost_by_day.lower_bound_calls IS 'Calls that cost at least what is summed.';
COMMENT ON COLUMN cost_by_day.estimated_calls IS 'Calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_day.unpriced_calls IS 'Calls without a price, which cost_usd leaves out.';
COMMENT ON COLUMN cost_by_day.cache_write_5m_tokens IS 'Part of cache_write_tokens: for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_day.cache_write_1h_tokens IS 'Part of cache_write_tokens: for 1 hour. [tokens]';
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
COMMENT ON VIEW cost_by_agent IS 'What each agent of each session cost, sub-agents by themselves: the rows of a session add up to it.';
COMMENT ON COLUMN cost_by_agent.session_id IS 'The session.';
COMMENT ON COLUMN cost_by_agent.lane IS 'The agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cost_by_agent.calls IS 'Billed calls; a response with iterations counts each of them.';
COMMENT ON COLUMN cost_by_agent.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_agent.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN cost_by_agent.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_agent.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_agent.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cost_by_agent.cost_status IS 'How sure the sum is: `exact`; `lower_bound`: something is left out; `estimated`: a part of it is; `unknown_model`: nothing has a price.';
COMMENT ON COLUMN cost_by_agent.exact_calls IS 'Calls whose cost is exact.';
COMMENT ON COLUMN cost_by_agent.lower_bound_calls IS 'Calls that cost at least what is summed.';
COMMENT ON COLUMN cost_by_agent.estimated_calls IS 'Calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_agent.unpriced_calls IS 'Calls without a price, which cost_usd leaves out.';
COMMENT ON COLUMN cost_by_agent.cache_write_5m_tokens IS 'Part of cache_write_tokens: for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_agent.cache_write_1h_tokens IS 'Part of cache_write_tokens: for 1 hour. [tokens]';
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
COMMENT ON VIEW cost_by_source IS 'The cost by purpose: the agent itself, sub-agents, and auxiliary calls.';
COMMENT ON COLUMN cost_by_source.source IS '`main`, `sub_agent`, `compaction`, `advisor`, `hook`, `classifier` and others.';
COMMENT ON COLUMN cost_by_source.calls IS 'Billed calls; a response with iterations counts each of them.';
COMMENT ON COLUMN cost_by_source.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_source.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN cost_by_source.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_source.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_source.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cost_by_source.cost_status IS 'How sure the sum is: `exact`; `lower_bound`: something is left out; `estimated`: a part of it is; `unknown_model`: nothing has a price.';
COMMENT ON COLUMN cost_by_source.exact_calls IS 'Calls whose cost is exact.';
COMMENT ON COLUMN cost_by_source.lower_bound_calls IS 'Calls that cost at least what is summed.';
COMMENT ON COLUMN cost_by_source.estimated_calls IS 'Calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_source.unpriced_calls IS 'Calls without a price, which cost_usd leaves out.';
COMMENT ON COLUMN cost_by_source.cache_write_5m_tokens IS 'Part of cache_write_tokens: for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_source.cache_write_1h_tokens IS 'Part of cache_write_tokens: for 1 hour. [tokens]';
COMMENT ON COLUMN cost_by_source.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN cost_by_source.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN cost_by_source.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN cost_by_source.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN cost_by_source.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN cost_by_source.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';

CREATE OR REPLACE VIEW cost_by_tool_turn AS
WITH asked AS (
    SELECT session_id, attempt_id, name, count(*) AS tool_calls
    FROM tool_uses
    GROUP BY session_id, attempt_id, name
), tools AS (
    SELECT *, count(*) OVER (PARTITION BY session_id, attempt_id) > 1 AS is_shared
    FROM asked
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
COMMENT ON VIEW cost_by_tool_turn IS 'What turns cost that ended in calls of a tool. A turn that calls several tools stands whole with each of them.';
COMMENT ON COLUMN cost_by_tool_turn.name IS 'The tool; NULL for answers without tool calls.';
COMMENT ON COLUMN cost_by_tool_turn.turns IS 'Answers with calls of the tool.';
COMMENT ON COLUMN cost_by_tool_turn.shared_turns IS 'Answers among them with calls of other tools, too: their cost is included for each tool.';
COMMENT ON COLUMN cost_by_tool_turn.tool_calls IS 'The number of calls of the tool in them.';
COMMENT ON COLUMN cost_by_tool_turn.calls IS 'Billed calls; a response with iterations counts each of them.';
COMMENT ON COLUMN cost_by_tool_turn.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cost_by_tool_turn.cost_status IS 'How sure the sum is: `exact`; `lower_bound`: something is left out; `estimated`: a part of it is; `unknown_model`: nothing has a price.';
COMMENT ON COLUMN cost_by_tool_turn.exact_calls IS 'Calls whose cost is exact.';
COMMENT ON COLUMN cost_by_tool_turn.lower_bound_calls IS 'Calls that cost at least what is summed.';
COMMENT ON COLUMN cost_by_tool_turn.estimated_calls IS 'Calls whose cost is estimated.';
COMMENT ON COLUMN cost_by_tool_turn.unpriced_calls IS 'Calls without a price, which cost_usd leaves out.';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_5m_tokens IS 'Part of cache_write_tokens: for 5 minutes. [tokens]';
COMMENT ON COLUMN cost_by_tool_turn.cache_write_1h_tokens IS 'Part of cache_write_tokens: for 1 hour. [tokens]';
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
COMMENT ON VIEW cost_certainty IS 'How sure the money is: calls by their status, with what they cost.';
COMMENT ON COLUMN cost_certainty.cost_status IS '`exact`, `lower_bound`, `estimated`, `unknown_model` or `unpriced`, as in audited_costs.';
COMMENT ON COLUMN cost_certainty.calls IS 'Billed calls of that status.';
COMMENT ON COLUMN cost_certainty.cost_usd IS 'What they cost; NULL where they have no price. [USD]';
COMMENT ON COLUMN cost_certainty.share_of_calls IS 'Their share of all billed calls, from 0 to 1.';
COMMENT ON COLUMN cost_certainty.models IS 'The models that were billed in them, by their one name.';

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
COMMENT ON VIEW cache_efficiency IS 'What caching did for each session: how much of the input it served, and the money that it saved beyond what writing it cost.';
COMMENT ON COLUMN cache_efficiency.session_id IS 'The session.';
COMMENT ON COLUMN cache_efficiency.calls IS 'Billed calls.';
COMMENT ON COLUMN cache_efficiency.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cache_efficiency.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cache_efficiency.cache_write_tokens IS 'Input written to the cache. [tokens]';
COMMENT ON COLUMN cache_efficiency.hit_ratio IS 'Share of all input that was read from the cache, from 0 to 1; NULL without input.';
COMMENT ON COLUMN cache_efficiency.read_saved_usd IS 'What the reads would have cost beyond what they did, as uncached input. [USD]';
COMMENT ON COLUMN cache_efficiency.write_premium_usd IS 'What the writes cost beyond uncached input. [USD]';
COMMENT ON COLUMN cache_efficiency.saved_usd IS 'The first less the second: below 0 where caching cost more than it saved. [USD]';
COMMENT ON COLUMN cache_efficiency.cost_usd IS 'The cost of the priced calls; NULL, never 0, if none has a price. [USD]';
COMMENT ON COLUMN cache_efficiency.cost_status IS 'How sure the money is, as in cost_by_session.';
COMMENT ON COLUMN cache_efficiency.unpriced_calls IS 'Calls without a price, which the money leaves out.';

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
    now.missed_tokens
FROM known AS now
LEFT JOIN known AS before
    ON now.session_id = before.session_id AND now.previous_attempt_id = before.attempt_id;
COMMENT ON VIEW cached_calls IS 'Cache reads and writes of each call, with the call that it continues. For a response with iterations, the last one is shown.';
COMMENT ON COLUMN cached_calls.session_id IS 'The session.';
COMMENT ON COLUMN cached_calls.lane IS 'The agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cached_calls.attempt_id IS 'The attempt.';
COMMENT ON COLUMN cached_calls.at_ns IS 'When it was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN cached_calls.model IS 'The model that is billed.';
COMMENT ON COLUMN cached_calls.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN cached_calls.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN cached_calls.cache_write_5m_tokens IS 'Input written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN cached_calls.cache_write_1h_tokens IS 'Input written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN cached_calls.cached_tokens IS 'What the cache holds after the call: read and written. [tokens]';
COMMENT ON COLUMN cached_calls.input_usd_each IS 'Price of a token of uncached input. [USD]';
COMMENT ON COLUMN cached_calls.cache_read_usd_each IS 'Price of a token that is read. [USD]';
COMMENT ON COLUMN cached_calls.cache_write_5m_usd_each IS 'Price of a token that is written for 5 minutes. [USD]';
COMMENT ON COLUMN cached_calls.cache_write_1h_usd_each IS 'Price of a token that is written for 1 hour. [USD]';
COMMENT ON COLUMN cached_calls.cost_status IS 'How sure the money of the call is, as in costs.';
COMMENT ON COLUMN cached_calls.previous_attempt_id IS 'The attempt whose prompt it continues or was compared with, or NULL.';
COMMENT ON COLUMN cached_calls.gap_ns IS 'How long after that one it was sent; NULL without one. [ns]';
COMMENT ON COLUMN cached_calls.previous_cached_tokens IS 'What the cache held after that one; NULL without one. [tokens]';
COMMENT ON COLUMN cached_calls.lifetime_ns IS 'How long the cache keeps it: 1 hour where either was written for that, else 5 minutes. [ns]';
COMMENT ON COLUMN cached_calls.changed IS 'The first zone that changed, as in prefixes; NULL if none did, or nothing is known.';
COMMENT ON COLUMN cached_calls.changed_message IS 'Which message changed, from 1; NULL unless `changed` is `messages`.';
COMMENT ON COLUMN cached_calls.miss_reason IS 'The reason of the cache miss that the provider reports, or NULL.';
COMMENT ON COLUMN cached_calls.missed_tokens IS 'The estimated number of missed tokens that it reports; NULL if it does not. [tokens]';

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
        -- A prompt that ends before the earlier one did has not changed it.
        CASE WHEN now.repeated <> before.messages THEN 'messages' END
    ), '') AS zones_changed
FROM zones AS now
JOIN zones AS before
    ON now.session_id = before.session_id AND now.compared_attempt_id = before.attempt_id
JOIN attempts ON now.session_id = attempts.session_id AND now.attempt_id = attempts.attempt_id
JOIN attempts AS compared
    ON before.session_id = compared.session_id AND before.attempt_id = compared.attempt_id;
COMMENT ON VIEW zone_changes IS 'What changed from one prompt to the next, by the digests of their zones.';
COMMENT ON COLUMN zone_changes.session_id IS 'The session.';
COMMENT ON COLUMN zone_changes.attempt_id IS 'The attempt.';
COMMENT ON COLUMN zone_changes.compared_attempt_id IS 'The earlier attempt whose prompt it continues, or the most similar one.';
COMMENT ON COLUMN zone_changes.turn IS 'The turn of the attempt in its lane, or NULL.';
COMMENT ON COLUMN zone_changes.compared_turn IS 'The turn of the earlier one, or NULL.';
COMMENT ON COLUMN zone_changes.zones_changed IS 'The names of all zones that changed, in the order of the prompt, joined by a comma: `betas`, `model`, `tools`, `system`, `parameters`, `system_dynamic`, `messages`; NULL if none did.';

CREATE OR REPLACE VIEW cache_misses AS
WITH missed AS (
    SELECT
        * EXCLUDE (missed_tokens),
        -- Here and below: invalid counts have no cost, and do not make queries fail.
        try_cast(
            coalesce(missed_tokens, greatest(previous_cached_tokens - cache_read_tokens, 0)) AS BIGINT
        ) AS missed_tokens
    FROM cached_calls
    WHERE previous_cached_tokens > 0
), split AS (
    -- What was missed was written again, for an hour as far as such writes go, and is else plain input.
    SELECT
        *,
        least(missed_tokens, greatest(cache_write_1h_tokens, 0)) AS again_1h,
        least(missed_tokens - again_1h, greatest(cache_write_5m_tokens, 0)) AS again_5m,
        least(missed_tokens - again_1h - again_5m, greatest(input_tokens, 0)) AS again_input,
        miss_reason IS NOT NULL
            AND miss_reason NOT IN ('unavailable', 'previous_message_not_found') AS is_told
    FROM missed
    WHERE missed_tokens > 0
)
SELECT
    split.session_id,
    lane,
    split.attempt_id,
    at_ns,
    model,
    gap_ns,
    again_1h + again_5m + again_input AS missed_tokens,
    (
        (again_1h * (cache_write_1h_usd_each - cache_read_usd_each))::DECIMAL(38, 12)
        + (again_5m * (cache_write_5m_usd_each - cache_read_usd_each))::DECIMAL(38, 12)
        + (again_input * (input_usd_each - cache_read_usd_each))::DECIMAL(38, 12)
    ) AS wasted_usd,
    CASE
        WHEN is_told THEN miss_reason
        WHEN changed IS NOT NULL THEN changed || '_changed'
        WHEN gap_ns > lifetime_ns THEN 'expired'
        ELSE 'unknown'
    END AS reason,
    changed_message,
    CASE
        WHEN is_told THEN 'provider'
        WHEN changed IS NOT NULL THEN 'request'
        WHEN gap_ns > lifetime_ns THEN 'gap'
    END AS reason_source,
    zones_changed,
    turn,
    compared_turn,
    previous_attempt_id AS compared_attempt_id
FROM split
LEFT JOIN zone_changes
    ON split.session_id = zone_changes.session_id
    AND split.attempt_id = zone_changes.attempt_id
    AND split.previous_attempt_id = zone_changes.compared_attempt_id;
COMMENT ON VIEW cache_misses IS 'Calls that paid again for tokens that the cache had held after the call before, and why.';
COMMENT ON COLUMN cache_misses.session_id IS 'The session.';
COMMENT ON COLUMN cache_misses.lane IS 'The agent: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cache_misses.attempt_id IS 'The attempt.';
COMMENT ON COLUMN cache_misses.at_ns IS 'When it was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN cache_misses.model IS 'The model that is billed.';
COMMENT ON COLUMN cache_misses.gap_ns IS 'How long after the call before it was sent. [ns]';
COMMENT ON COLUMN cache_misses.missed_tokens IS 'Tokens that were paid again: as the provider reports, else what the cache held minus what was read; never more than the call wrote or sent as uncached input. [tokens]';
COMMENT ON COLUMN cache_misses.wasted_usd IS 'What that cost beyond reading it: an estimate; NULL without a price. [USD]';
COMMENT ON COLUMN cache_misses.reason IS '`model_changed`, `tools_changed`, `system_changed`, `parameters_changed`, `messages_changed`; `betas_changed`, `system_dynamic_changed`; `expired`: it was sent after the lifetime of the cache; `unknown`: no zone of the request changed; or another reason of the provider''s.';
COMMENT ON COLUMN cache_misses.changed_message IS 'Which message changed, from 1, or NULL.';
COMMENT ON COLUMN cache_misses.zones_changed IS 'The names of all zones of the request that changed, as in zone_changes; NULL if none did, or nothing is known.';
COMMENT ON COLUMN cache_misses.turn IS 'The turn of the request in its lane; NULL where nothing is known.';
COMMENT ON COLUMN cache_misses.compared_turn IS 'The turn of the earlier request that it is compared with; NULL where nothing is known.';
COMMENT ON COLUMN cache_misses.compared_attempt_id IS 'The attempt of that earlier request.';
COMMENT ON COLUMN cache_misses.reason_source IS '`provider`: its diagnostics; `request`: the first zone of the request that changed; `gap`: the time between the calls; NULL if the reason is unknown.';

CREATE OR REPLACE VIEW cache_lifetimes AS
WITH reused AS (
    SELECT
        *,
        try_cast(CASE
            -- It had expired and nothing else is known to have changed: in time it would have been read.
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
    -- The iterations before the last one follow each other at once: what they read would have been there.
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
COMMENT ON VIEW cache_lifetimes IS 'What the cache of each session would have cost with either lifetime, had all else been the same: the gaps between its calls decide.';
COMMENT ON COLUMN cache_lifetimes.session_id IS 'The session.';
COMMENT ON COLUMN cache_lifetimes.calls IS 'Calls that read from or wrote to the cache.';
COMMENT ON COLUMN cache_lifetimes.gaps_over_5m IS 'Calls sent more than 5 minutes after the one that they continue.';
COMMENT ON COLUMN cache_lifetimes.gaps_over_1h IS 'Calls sent more than 1 hour after it.';
COMMENT ON COLUMN cache_lifetimes.cache_usd IS 'What reads and writes cost as they were; NULL where nothing has a price. [USD]';
COMMENT ON COLUMN cache_lifetimes.cache_5m_usd IS 'What they would have cost with a lifetime of 5 minutes. [USD]';
COMMENT ON COLUMN cache_lifetimes.cache_1h_usd IS 'What they would have cost with a lifetime of 1 hour. [USD]';
COMMENT ON COLUMN cache_lifetimes.better IS 'The cheaper lifetime, `5m` or `1h`; `either` if the cost is equal; NULL without a price.';
COMMENT ON COLUMN cache_lifetimes.unpriced_calls IS 'Calls without a price, which the money leaves out.';
