-- Costs, one row per call: usage times price. The views for users are in 20_money.sql.

CREATE OR REPLACE VIEW costs AS
WITH each_price AS (
    -- A price per million with six digits becomes a price per token with twelve digits, so nothing is rounded.
    SELECT
        * EXCLUDE (certainty, note),
        certainty AS price_certainty,
        input_usd_per_million * 0.000001::DECIMAL(7, 6) AS input_usd_each,
        output_usd_per_million * 0.000001::DECIMAL(7, 6) AS output_usd_each,
        cache_read_usd_per_million * 0.000001::DECIMAL(7, 6) AS cache_read_usd_each,
        cache_write_5m_usd_per_million * 0.000001::DECIMAL(7, 6) AS cache_write_5m_usd_each,
        cache_write_1h_usd_per_million * 0.000001::DECIMAL(7, 6) AS cache_write_1h_usd_each,
        web_search_usd_per_thousand * 0.001000::DECIMAL(7, 6) AS web_search_usd_each
    FROM prices
), billed AS (
    SELECT
        *,
        -- HUGEINT, so that invalid counts of a hostile provider do not overflow sums over all sessions.
        input_tokens::HUGEINT + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens AS prompt_tokens,
        CASE
            WHEN certainty = 'exact' AND (code_execution_requests > 0 OR server_requests IS NOT NULL) THEN 'lower_bound'
            ELSE certainty
        END AS counts_status
    FROM (
        SELECT * FROM usage WHERE billed AND batch_result_id IS NULL
        UNION ALL
        -- The results of a batch can be fetched repeatedly; each result counts once, at the time of the first fetch.
        SELECT * FROM usage WHERE billed AND batch_result_id IS NOT NULL
        QUALIFY row_number() OVER (
            PARTITION BY batch_result_id, iteration ORDER BY at_ns, attempt_id, segment_id, sequence
        ) = 1
    )
), priced AS (
    SELECT
        u.*,
        p.canonical_model,
        p.price_certainty,
        p.price_version,
        p.input_usd_each,
        p.output_usd_each,
        p.cache_read_usd_each,
        p.cache_write_5m_usd_each,
        p.cache_write_1h_usd_each,
        p.web_search_usd_each,
        (u.input_tokens * p.input_usd_each)::DECIMAL(38, 12) AS input_usd,
        (u.output_tokens * p.output_usd_each)::DECIMAL(38, 12) AS output_usd,
        (u.cache_read_tokens * p.cache_read_usd_each)::DECIMAL(38, 12) AS cache_read_usd,
        (u.cache_write_5m_tokens * p.cache_write_5m_usd_each)::DECIMAL(38, 12) AS cache_write_5m_usd,
        (u.cache_write_1h_tokens * p.cache_write_1h_usd_each)::DECIMAL(38, 12) AS cache_write_1h_usd,
        (u.web_search_requests * p.web_search_usd_each)::DECIMAL(38, 12) AS server_tools_usd
    FROM billed AS u
    LEFT JOIN each_price AS p
        ON u.model = p.model
        AND u.service_tier IS NOT DISTINCT FROM p.service_tier
        AND u.inference_geo IS NOT DISTINCT FROM p.inference_geo
        AND u.speed IS NOT DISTINCT FROM p.speed
        AND u.at_ns >= p.valid_from_ns
        AND u.at_ns < p.valid_to_ns
        AND u.prompt_tokens >= p.prompt_tokens_from
        AND u.prompt_tokens < p.prompt_tokens_to
)
SELECT
    session_id,
    attempt_id,
    iteration,
    at_ns,
    make_timestamp_ns(at_ns) AS sent_at,
    -- A cast of the timestamp would round the last nanoseconds of a day up to the next day.
    DATE '1970-01-01' + (at_ns // 86400000000000)::INTEGER AS day,
    kind,
    model,
    coalesce(canonical_model, model) AS canonical_model,
    service_tier,
    inference_geo,
    speed,
    input_tokens,
    output_tokens,
    cache_read_tokens,
    cache_write_5m_tokens::HUGEINT + cache_write_1h_tokens AS cache_write_tokens,
    cache_write_5m_tokens,
    cache_write_1h_tokens,
    web_search_requests,
    input_usd,
    output_usd,
    cache_read_usd,
    cache_write_5m_usd,
    cache_write_1h_usd,
    server_tools_usd,
    input_usd + output_usd + cache_read_usd + cache_write_5m_usd + cache_write_1h_usd + server_tools_usd AS cost_usd,
    CASE
        WHEN price_certainty IS NULL THEN 'unpriced'
        WHEN price_certainty <> 'exact' THEN price_certainty
        ELSE counts_status
    END AS cost_status,
    counts_status,
    price_version,
    input_usd_each,
    output_usd_each,
    cache_read_usd_each,
    cache_write_5m_usd_each,
    cache_write_1h_usd_each,
    web_search_usd_each
FROM priced;
COMMENT ON VIEW costs IS 'The cost of each billed call: usage times price, in six parts that add up. A response with iterations has one row for each iteration.';
COMMENT ON COLUMN costs.session_id IS 'The ID of the session.';
COMMENT ON COLUMN costs.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN costs.iteration IS '0 if the response has no iterations; the number of the iteration, from 1, otherwise.';
COMMENT ON COLUMN costs.at_ns IS 'When the attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN costs.sent_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN costs.day IS 'The day on which the attempt was sent. [UTC]';
COMMENT ON COLUMN costs.kind IS 'What the model generated: `message`, `compaction` and others.';
COMMENT ON COLUMN costs.model IS 'The billed model.';
COMMENT ON COLUMN costs.canonical_model IS 'The canonical name of the billed model, even if an alias or a dated ID was billed.';
COMMENT ON COLUMN costs.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN costs.inference_geo IS 'Where inference ran, or NULL.';
COMMENT ON COLUMN costs.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN costs.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN costs.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN costs.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN costs.cache_write_tokens IS 'Input tokens that were written to the cache: the sum of the next two columns. [tokens]';
COMMENT ON COLUMN costs.cache_write_5m_tokens IS 'Input tokens that were written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN costs.cache_write_1h_tokens IS 'Input tokens that were written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN costs.web_search_requests IS 'The number of web searches that the provider ran. [requests]';
COMMENT ON COLUMN costs.input_usd IS 'Part of cost_usd: uncached input. [USD]';
COMMENT ON COLUMN costs.output_usd IS 'Part of cost_usd: output. [USD]';
COMMENT ON COLUMN costs.cache_read_usd IS 'Part of cost_usd: cache reads. [USD]';
COMMENT ON COLUMN costs.cache_write_5m_usd IS 'Part of cost_usd: cache writes for 5 minutes. [USD]';
COMMENT ON COLUMN costs.cache_write_1h_usd IS 'Part of cost_usd: cache writes for 1 hour. [USD]';
COMMENT ON COLUMN costs.server_tools_usd IS 'Part of cost_usd: web searches. [USD]';
COMMENT ON COLUMN costs.cost_usd IS 'The total cost; NULL, never 0, without a price. [USD]';
COMMENT ON COLUMN costs.cost_status IS '`exact`; `lower_bound`: a stream ended before its final counts, or the provider ran something for which agentobs has no price; `estimated`: see usage.note and prices.note; `unknown_model`: no price is known; `unpriced`: no price was looked up yet.';
COMMENT ON COLUMN costs.counts_status IS 'The part of cost_status that does not depend on the price: `exact`, `lower_bound` or `estimated`.';
COMMENT ON COLUMN costs.price_version IS 'The version of the prices that were used.';
COMMENT ON COLUMN costs.input_usd_each IS 'The price of a token of uncached input; NULL without a price. [USD]';
COMMENT ON COLUMN costs.output_usd_each IS 'The price of a token of output; NULL without a price. [USD]';
COMMENT ON COLUMN costs.cache_read_usd_each IS 'The price of a token read from the cache; NULL without a price. [USD]';
COMMENT ON COLUMN costs.cache_write_5m_usd_each IS 'The price of a token written to the cache for 5 minutes; NULL without a price. [USD]';
COMMENT ON COLUMN costs.cache_write_1h_usd_each IS 'The price of a token written to the cache for 1 hour; NULL without a price. [USD]';
COMMENT ON COLUMN costs.web_search_usd_each IS 'The price of a web search; NULL without a price. [USD]';
