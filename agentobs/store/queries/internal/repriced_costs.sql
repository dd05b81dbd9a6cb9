-- What would the calls cost with other prices, by model and in total?
--
-- $session_ids: only these sessions, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. $prices: a list of price rows. $lifetime: the lifetime at which all cache writes are priced, or
-- NULL. $is_assumed: whether token counts are assumptions, so that no cost is exact.
WITH what_if_prices AS (
    SELECT unnest($prices::STRUCT(
        model VARCHAR, service_tier VARCHAR, inference_geo VARCHAR, speed VARCHAR,
        valid_from_ns BIGINT, valid_to_ns BIGINT, prompt_tokens_from BIGINT, prompt_tokens_to BIGINT,
        input DECIMAL(18, 6), output DECIMAL(18, 6), cache_read DECIMAL(18, 6),
        cache_write_5m DECIMAL(18, 6), cache_write_1h DECIMAL(18, 6), web_search DECIMAL(18, 6),
        certainty VARCHAR
    )[], recursive := true)
), calls AS (
    SELECT
        *,
        input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens AS prompt_tokens,
        CASE $lifetime::VARCHAR WHEN '5m' THEN cache_write_tokens WHEN '1h' THEN 0
            ELSE cache_write_5m_tokens END::BIGINT AS write_5m,
        CASE $lifetime::VARCHAR WHEN '1h' THEN cache_write_tokens WHEN '5m' THEN 0
            ELSE cache_write_1h_tokens END::BIGINT AS write_1h
    FROM costs
    WHERE
        ($session_ids::VARCHAR[] IS NULL OR list_contains($session_ids::VARCHAR[], session_id))
        AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
), priced AS (
    SELECT
        c.canonical_model AS model,
        c.cost_usd AS stored_usd,
        c.cost_status,
        (
            (c.input_tokens * (p.input * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
            + (c.output_tokens * (p.output * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
            + (c.cache_read_tokens * (p.cache_read * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
            + (c.write_5m * (p.cache_write_5m * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
            + (c.write_1h * (p.cache_write_1h * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
            + (c.web_search_requests * (p.web_search * 0.001000::DECIMAL(7, 6)))::DECIMAL(38, 12)
        ) AS what_if_usd,
        coalesce(p.certainty, 'unknown_model') <> 'exact'
            OR c.counts_status <> 'exact' OR $is_assumed::BOOLEAN AS is_doubtful
    FROM calls AS c
    LEFT JOIN what_if_prices AS p
        ON c.model = p.model
        AND c.service_tier IS NOT DISTINCT FROM p.service_tier
        AND c.inference_geo IS NOT DISTINCT FROM p.inference_geo
        AND c.speed IS NOT DISTINCT FROM p.speed
        AND c.at_ns >= p.valid_from_ns AND c.at_ns < p.valid_to_ns
        AND c.prompt_tokens >= p.prompt_tokens_from AND c.prompt_tokens < p.prompt_tokens_to
)
SELECT
    model,
    count(*),
    sum(stored_usd),
    sum(what_if_usd),
    sum(what_if_usd - stored_usd),
    count(*) FILTER (WHERE stored_usd IS NULL),
    count(*) FILTER (WHERE what_if_usd IS NULL),
    count(*) FILTER (WHERE cost_status <> 'exact'),
    count(*) FILTER (WHERE is_doubtful)
FROM priced
GROUP BY GROUPING SETS ((model), ())
ORDER BY grouping(model), sum(stored_usd) DESC NULLS LAST, model;
