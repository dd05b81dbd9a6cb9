-- Which prompts did several agents of a session write to the cache, although an earlier write had not expired?
--
-- $session_id: the session. Only the first prompts of agents are compared, and only complete prompts: those with equal
-- model, tools, system prompt and messages. One row for each prompt. writes is the number of agents that wrote it, each
-- within the lifetime of the write before it. tokens is the smallest number of tokens that one of them wrote. extra_usd
-- is what the later writes cost more than reading; NULL without a price. attempt_ids and extras are the requests with
-- the later writes, and the part of each in extra_usd.
WITH first_prompts AS (
    SELECT attempt_id, lane, started_ns, started_ns + duration_ns AS ended_ns
    FROM attempts
    WHERE
        session_id = $session_id::VARCHAR AND outcome = 'ok' AND makes_turns
        AND coalesce(query_source IN ('main', 'sub_agent'), true)
    QUALIFY row_number() OVER (PARTITION BY lane ORDER BY started_ns, attempt_id) = 1
), written AS (
    SELECT
        attempt_id,
        sum(cache_read_tokens) AS read_tokens,
        sum(cache_write_tokens) AS tokens,
        sum(cache_write_1h_tokens) AS hour_tokens,
        sum(
            cache_write_5m_usd + cache_write_1h_usd
            - (cache_write_5m_tokens + cache_write_1h_tokens) * cache_read_usd_each
        ) AS extra_usd,
        bool_or(cost_usd IS NULL) AS is_unpriced
    FROM costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), prompts AS (
    SELECT
        first_prompts.*, written.* EXCLUDE (attempt_id),
        hash(
            zones.betas, zones.model, zones.tools, zones.system, zones.parameters, zones.system_dynamic, zones.messages
        ) AS prompt
    FROM first_prompts
    JOIN written USING (attempt_id)
    JOIN zones ON zones.session_id = $session_id::VARCHAR AND first_prompts.attempt_id = zones.attempt_id
    WHERE zones.messages IS NOT NULL AND written.tokens > 0
), repeated AS (
    SELECT
        *,
        read_tokens = 0 AND started_ns BETWEEN lag(ended_ns) OVER same AND lag(ended_ns) OVER same + CASE
            WHEN lag(hour_tokens) OVER same = lag(tokens) OVER same THEN 3600000000000 ELSE 300000000000
        END AS is_again
    FROM prompts
    WINDOW same AS (PARTITION BY prompt ORDER BY started_ns, attempt_id)
)
SELECT
    1 + count(*) FILTER (WHERE is_again) AS writes,
    bool_or(lane = 'main') AS has_main,
    min(tokens)::BIGINT AS tokens,
    CASE WHEN NOT bool_or(is_again AND is_unpriced) THEN sum(extra_usd) FILTER (WHERE is_again) END AS extra_usd,
    list(attempt_id ORDER BY started_ns, attempt_id) FILTER (WHERE is_again) AS attempt_ids,
    list(extra_usd ORDER BY started_ns, attempt_id) FILTER (WHERE is_again) AS extras
FROM repeated
GROUP BY prompt
HAVING count(*) FILTER (WHERE is_again) > 0
ORDER BY extra_usd DESC NULLS LAST, tokens DESC;
