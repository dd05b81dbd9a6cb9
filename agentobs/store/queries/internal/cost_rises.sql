-- Which requests of a session cost clearly more than the previous request of their lane?
--
-- $session_id: the session. $ratio: the minimum cost, relative to the previous request. $share: the minimum difference,
-- relative to the cost of the session. $limit: the maximum number of rows, most expensive first. Columns with the
-- prefix before_ are about the previous request. result_bytes and tool are about the largest result of its calls. If
-- the cost of the previous request is a lower bound, because the size of its output is unknown, only the costs of both
-- prompts are compared. A request with $ratio but without $share is included if it cost as much as one that has both.
-- found is the number of rows without $limit.
WITH spent AS (
    SELECT
        attempt_id,
        sum(input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens)::HUGEINT AS prompt_tokens,
        sum(output_tokens)::HUGEINT AS output_tokens,
        sum(output_usd) AS output_usd,
        sum(input_usd + cache_read_usd + cache_write_5m_usd + cache_write_1h_usd) AS prompt_usd,
        count(cost_usd) = count(*) AS has_price,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status,
        arg_max(canonical_model, iteration) AS model,
        arg_max(service_tier, iteration) AS service_tier
    FROM audited_costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), requests AS (
    SELECT attempts.lane, attempts.turn, attempts.started_ns, spent.*
    FROM attempts
    JOIN spent ON attempts.attempt_id = spent.attempt_id
    WHERE attempts.session_id = $session_id::VARCHAR AND spent.cost_usd > 0
), compared AS (
    SELECT
        *,
        lag(attempt_id) OVER requests_of_lane AS before_attempt_id,
        lag(cost_usd) OVER requests_of_lane AS before_usd,
        lag(cost_status) OVER requests_of_lane AS before_cost_status,
        lag(prompt_usd) OVER requests_of_lane AS before_prompt_usd,
        lag(has_price) OVER requests_of_lane AS before_has_price,
        lag(output_usd) OVER requests_of_lane AS before_output_usd,
        lag(output_tokens) OVER requests_of_lane AS before_output_tokens,
        lag(prompt_tokens) OVER requests_of_lane AS before_prompt_tokens,
        lag(model) OVER requests_of_lane AS before_model,
        lag(service_tier) OVER requests_of_lane AS before_service_tier,
        sum(cost_usd) OVER () AS total_usd
    FROM requests
    WINDOW requests_of_lane AS (PARTITION BY lane ORDER BY started_ns, attempt_id)
), rises AS (
    SELECT
        *,
        CASE
            WHEN before_cost_status <> 'lower_bound' THEN cost_usd - before_usd
            ELSE prompt_usd - before_prompt_usd
        END >= $share::DOUBLE * total_usd AS is_large
    FROM compared
    WHERE
        CASE
            WHEN before_cost_status <> 'lower_bound' THEN cost_usd >= $ratio::DOUBLE * before_usd
            ELSE before_has_price AND prompt_usd >= $ratio::DOUBLE * before_prompt_usd
        END
    QUALIFY cost_usd >= min(cost_usd) FILTER (WHERE is_large) OVER ()
), results AS (
    SELECT attempt_id, max(result_bytes) AS result_bytes, arg_max(name, result_bytes) AS tool
    FROM tool_calls
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
)
SELECT
    rises.* EXCLUDE (prompt_usd, before_prompt_usd, has_price, before_has_price, is_large), results.result_bytes,
    results.tool, count(*) OVER () AS found
FROM rises
LEFT JOIN results ON rises.before_attempt_id = results.attempt_id
ORDER BY cost_usd DESC, started_ns, rises.attempt_id
LIMIT $limit::BIGINT;
