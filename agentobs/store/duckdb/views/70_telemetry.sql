-- Telemetry: what other programs report about their requests, and where it differs from the recorded requests.

CREATE OR REPLACE VIEW telemetry AS
SELECT
    labels['client_session'] AS client_session,
    session_id,
    labels['signal'] AS signal,
    label AS name,
    at_ns,
    labels['request_id'] AS request_id,
    labels['tool_use_id'] AS tool_use_id,
    labels['model'] AS model,
    labels['trace_id'] AS trace_id,
    labels['span_id'] AS span_id,
    labels['parent_span_id'] AS parent_span_id,
    numbers['value'] AS value,
    TRY_CAST(numbers['span_duration_ns'] AS BIGINT) AS duration_ns,
    labels,
    numbers
FROM events
WHERE kind = 'telemetry'
-- A program sends records again if it gets no response.
QUALIFY row_number() OVER (PARTITION BY labels['id'] ORDER BY segment_id, sequence) = 1;
COMMENT ON VIEW telemetry IS 'One row for each log record, span and data point of a metric that `agentobs collect` received. Records that were sent again count once.';
COMMENT ON COLUMN telemetry.client_session IS 'The client''s ID of the session, as in `session_starts.tags[''client_session'']` of the recorded session; NULL if unknown.';
COMMENT ON COLUMN telemetry.session_id IS 'The session that contains the record; it contains nothing else.';
COMMENT ON COLUMN telemetry.signal IS '`log`, `span` or `metric`.';
COMMENT ON COLUMN telemetry.name IS 'The name of the record; NULL if agentobs does not know it.';
COMMENT ON COLUMN telemetry.at_ns IS 'The time of a log record or a data point, or the start of a span. [ns since 1970 UTC]';
COMMENT ON COLUMN telemetry.request_id IS 'The provider''s ID of the request, or NULL.';
COMMENT ON COLUMN telemetry.tool_use_id IS 'The ID of the tool call, or NULL.';
COMMENT ON COLUMN telemetry.model IS 'The model, or NULL.';
COMMENT ON COLUMN telemetry.trace_id IS 'The trace of a log record or a span, or NULL.';
COMMENT ON COLUMN telemetry.span_id IS 'The span, or the span of a log record, or NULL.';
COMMENT ON COLUMN telemetry.parent_span_id IS 'The parent of a span, or NULL.';
COMMENT ON COLUMN telemetry.value IS 'The value of a data point; NULL for other records.';
COMMENT ON COLUMN telemetry.duration_ns IS 'The duration of a span; NULL for other records. [ns]';
COMMENT ON COLUMN telemetry.labels IS 'Attributes with an ID or a known word, by name.';
COMMENT ON COLUMN telemetry.numbers IS 'Attributes with a number, by name; true is 1, false is 0.';

CREATE OR REPLACE VIEW telemetry_requests AS
WITH reported AS (
    SELECT *, name = 'claude_code.api_request' AS is_log
    FROM telemetry
    WHERE request_id IS NOT NULL AND (
        (signal = 'log' AND name = 'claude_code.api_request')
        -- The span of a request that failed has the request ID of its last attempt, and success is 0.
        OR (signal = 'span' AND name = 'claude_code.llm_request' AND coalesce(numbers['success'], 1) <> 0)
    )
)
SELECT
    client_session,
    request_id,
    any_value(model) AS model,
    min(at_ns) AS at_ns,
    -- Any program can send a number that is too large; it is then unknown.
    TRY_CAST(max(numbers['cost_usd']) FILTER (WHERE is_log) AS DECIMAL(24, 12))::DECIMAL(38, 12) AS cost_usd,
    TRY_CAST(max(numbers['input_tokens']) AS BIGINT) AS input_tokens,
    TRY_CAST(max(numbers['output_tokens']) AS BIGINT) AS output_tokens,
    TRY_CAST(max(numbers['cache_read_tokens']) AS BIGINT) AS cache_read_tokens,
    TRY_CAST(max(numbers['cache_creation_tokens']) AS BIGINT) AS cache_write_tokens,
    max(numbers['duration_ms']) FILTER (WHERE is_log) AS duration_ms,
    max(numbers['ttft_ms']) AS first_token_ms
FROM reported
GROUP BY client_session, request_id;
COMMENT ON VIEW telemetry_requests IS 'One row for each successful request that Claude Code''s telemetry names, from its log record, or from its span without one.';
COMMENT ON COLUMN telemetry_requests.client_session IS 'The client''s ID of the session; NULL if unknown.';
COMMENT ON COLUMN telemetry_requests.request_id IS 'The provider''s ID of the request.';
COMMENT ON COLUMN telemetry_requests.model IS 'The model; NULL if unknown.';
COMMENT ON COLUMN telemetry_requests.at_ns IS 'The start of the span, or the time of the log record, which is the end of the request. [ns since 1970 UTC]';
COMMENT ON COLUMN telemetry_requests.cost_usd IS 'The cost as the client computed it; NULL without a log record. [USD]';
COMMENT ON COLUMN telemetry_requests.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN telemetry_requests.output_tokens IS 'Output tokens. [tokens]';
COMMENT ON COLUMN telemetry_requests.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN telemetry_requests.cache_write_tokens IS 'Input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN telemetry_requests.duration_ms IS 'The duration of the request as the client measured it; NULL without a log record. [ms]';
COMMENT ON COLUMN telemetry_requests.first_token_ms IS 'The time to the first token as the client measured it; NULL if unknown. [ms]';

CREATE OR REPLACE VIEW telemetry_comparison AS
WITH costs_of_attempts AS (
    SELECT
        session_id, attempt_id,
        sum(cost_usd) AS cost_usd, bool_or(cost_usd IS NULL) AS is_unpriced,
        TRY_CAST(sum(input_tokens) AS BIGINT) AS input_tokens,
        TRY_CAST(sum(output_tokens) AS BIGINT) AS output_tokens,
        TRY_CAST(sum(cache_read_tokens) AS BIGINT) AS cache_read_tokens,
        TRY_CAST(sum(cache_write_tokens) AS BIGINT) AS cache_write_tokens
    FROM call_costs
    GROUP BY session_id, attempt_id
), candidates AS (
    SELECT
        s.client_session, a.session_id, a.attempt_id, a.request_id, a.model, a.started_ns,
        a.started_ns + coalesce(a.duration_ns, 0) AS ended_ns,
        CASE WHEN c.is_unpriced THEN NULL ELSE c.cost_usd END AS cost_usd,
        c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens
    FROM attempts AS a
    JOIN (
        SELECT DISTINCT session_id, tags['client_session'] AS client_session
        FROM session_starts
        WHERE tags['client_session'] IS NOT NULL
    ) AS s ON a.session_id = s.session_id
    JOIN costs_of_attempts AS c ON a.session_id = c.session_id AND a.attempt_id = c.attempt_id
    -- A request that was cut off has a cost if the response had started.
    WHERE a.outcome = 'ok' OR c.cost_usd > 0
), periods AS (
    SELECT
        c.client_session, c.session_id,
        least(min(c.started_ns), min(s.started_ns)) AS started_ns,
        coalesce(max(e.ended_ns), max(c.ended_ns)) AS ended_ns
    FROM candidates AS c
    LEFT JOIN session_starts AS s ON c.session_id = s.session_id
    LEFT JOIN session_ends AS e ON c.session_id = e.session_id
    GROUP BY c.client_session, c.session_id
), covered AS (
    -- A client session that was resumed can have recorded sessions from a time when it sent no telemetry.
    SELECT p.session_id
    FROM periods AS p
    JOIN telemetry AS t ON p.client_session = t.client_session AND t.at_ns BETWEEN p.started_ns AND p.ended_ns
    UNION
    -- The clocks of the client and of the recorder can differ.
    SELECT c.session_id
    FROM candidates AS c
    JOIN telemetry_requests AS t ON c.client_session = t.client_session AND c.request_id = t.request_id
), recorded AS (
    FROM candidates SEMI JOIN covered ON candidates.session_id = covered.session_id
)
SELECT
    coalesce(r.client_session, t.client_session) AS client_session,
    r.session_id,
    coalesce(r.request_id, t.request_id) AS request_id,
    CASE
        WHEN r.attempt_id IS NULL THEN 'only in telemetry'
        WHEN r.request_id IS NULL THEN 'no request ID'
        WHEN t.request_id IS NULL THEN 'only recorded'
        WHEN t.cost_usd <> r.cost_usd OR (t.cost_usd IS NOT NULL AND r.cost_usd IS NULL) THEN 'cost'
        WHEN
            t.input_tokens <> r.input_tokens OR t.output_tokens <> r.output_tokens
            OR t.cache_read_tokens <> r.cache_read_tokens OR t.cache_write_tokens <> r.cache_write_tokens
            THEN 'tokens'
    END AS difference,
    coalesce(r.model, t.model) AS model,
    coalesce(r.started_ns, t.at_ns) AS at_ns,
    r.cost_usd AS recorded_usd,
    t.cost_usd AS telemetry_usd,
    t.cost_usd - r.cost_usd AS difference_usd,
    r.input_tokens AS recorded_input_tokens,
    t.input_tokens AS telemetry_input_tokens,
    r.output_tokens AS recorded_output_tokens,
    t.output_tokens AS telemetry_output_tokens,
    r.cache_read_tokens AS recorded_cache_read_tokens,
    t.cache_read_tokens AS telemetry_cache_read_tokens,
    r.cache_write_tokens AS recorded_cache_write_tokens,
    t.cache_write_tokens AS telemetry_cache_write_tokens
FROM recorded AS r
FULL JOIN telemetry_requests AS t ON r.request_id = t.request_id AND r.client_session = t.client_session;
COMMENT ON VIEW telemetry_comparison IS 'One row for each request of client sessions with telemetry: the recorded request and what the telemetry says about it. Recorded sessions from a time without telemetry have no rows.';
COMMENT ON COLUMN telemetry_comparison.client_session IS 'The client''s ID of the session; NULL if unknown.';
COMMENT ON COLUMN telemetry_comparison.session_id IS 'The recorded session; NULL if the request was not recorded.';
COMMENT ON COLUMN telemetry_comparison.request_id IS 'The provider''s ID of the request; NULL if the response had none.';
COMMENT ON COLUMN telemetry_comparison.difference IS '`only recorded`, `only in telemetry`, `no request ID` (the recorded response had none, so it cannot be compared), `cost` (the client has other prices or other tokens), or `tokens`; NULL if both agree.';
COMMENT ON COLUMN telemetry_comparison.model IS 'The model; NULL if unknown.';
COMMENT ON COLUMN telemetry_comparison.at_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN telemetry_comparison.recorded_usd IS 'The cost of the recorded request; NULL without a price or a recorded request. [USD]';
COMMENT ON COLUMN telemetry_comparison.telemetry_usd IS 'The cost in the telemetry; NULL if unknown. [USD]';
COMMENT ON COLUMN telemetry_comparison.difference_usd IS 'The cost in the telemetry minus the cost of the recorded request; NULL if either is unknown. [USD]';
COMMENT ON COLUMN telemetry_comparison.recorded_input_tokens IS 'Uncached input tokens of the recorded request. [tokens]';
COMMENT ON COLUMN telemetry_comparison.telemetry_input_tokens IS 'Uncached input tokens in the telemetry. [tokens]';
COMMENT ON COLUMN telemetry_comparison.recorded_output_tokens IS 'Output tokens of the recorded request. [tokens]';
COMMENT ON COLUMN telemetry_comparison.telemetry_output_tokens IS 'Output tokens in the telemetry. [tokens]';
COMMENT ON COLUMN telemetry_comparison.recorded_cache_read_tokens IS 'Tokens that the recorded request read from the cache. [tokens]';
COMMENT ON COLUMN telemetry_comparison.telemetry_cache_read_tokens IS 'Tokens read from the cache, in the telemetry. [tokens]';
COMMENT ON COLUMN telemetry_comparison.recorded_cache_write_tokens IS 'Tokens that the recorded request wrote to the cache. [tokens]';
COMMENT ON COLUMN telemetry_comparison.telemetry_cache_write_tokens IS 'Tokens written to the cache, in the telemetry. [tokens]';

CREATE OR REPLACE VIEW telemetry_differences AS
FROM telemetry_comparison
WHERE difference IS NOT NULL
ORDER BY abs(coalesce(difference_usd, telemetry_usd, recorded_usd)) DESC NULLS LAST;
COMMENT ON VIEW telemetry_differences IS 'The rows of `telemetry_comparison` about which the recorded session and the telemetry disagree, the largest amount first.';
COMMENT ON COLUMN telemetry_differences.client_session IS 'The client''s ID of the session; NULL if unknown.';
COMMENT ON COLUMN telemetry_differences.session_id IS 'The recorded session; NULL if the request was not recorded.';
COMMENT ON COLUMN telemetry_differences.request_id IS 'The provider''s ID of the request; NULL if the response had none.';
COMMENT ON COLUMN telemetry_differences.difference IS '`only recorded`, `only in telemetry`, `no request ID` (the recorded response had none, so it cannot be compared), `cost` (the client has other prices or other tokens), or `tokens`.';
COMMENT ON COLUMN telemetry_differences.model IS 'The model; NULL if unknown.';
COMMENT ON COLUMN telemetry_differences.at_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN telemetry_differences.recorded_usd IS 'The cost of the recorded request; NULL without a price or a recorded request. [USD]';
COMMENT ON COLUMN telemetry_differences.telemetry_usd IS 'The cost in the telemetry; NULL if unknown. [USD]';
COMMENT ON COLUMN telemetry_differences.difference_usd IS 'The cost in the telemetry minus the cost of the recorded request; NULL if either is unknown. [USD]';
COMMENT ON COLUMN telemetry_differences.recorded_input_tokens IS 'Uncached input tokens of the recorded request. [tokens]';
COMMENT ON COLUMN telemetry_differences.telemetry_input_tokens IS 'Uncached input tokens in the telemetry. [tokens]';
COMMENT ON COLUMN telemetry_differences.recorded_output_tokens IS 'Output tokens of the recorded request. [tokens]';
COMMENT ON COLUMN telemetry_differences.telemetry_output_tokens IS 'Output tokens in the telemetry. [tokens]';
COMMENT ON COLUMN telemetry_differences.recorded_cache_read_tokens IS 'Tokens that the recorded request read from the cache. [tokens]';
COMMENT ON COLUMN telemetry_differences.telemetry_cache_read_tokens IS 'Tokens read from the cache, in the telemetry. [tokens]';
COMMENT ON COLUMN telemetry_differences.recorded_cache_write_tokens IS 'Tokens that the recorded request wrote to the cache. [tokens]';
COMMENT ON COLUMN telemetry_differences.telemetry_cache_write_tokens IS 'Tokens written to the cache, in the telemetry. [tokens]';

CREATE OR REPLACE VIEW telemetry_metrics AS
WITH series AS (
    SELECT
        client_session, name, model, labels['type'] AS type, labels['query_source'] AS query_source,
        CASE WHEN any_value(numbers['is_cumulative']) = 1 THEN arg_max(value, at_ns) ELSE sum(value) END AS total
    FROM telemetry
    WHERE signal = 'metric'
    GROUP BY client_session, name, model, labels['type'], labels['query_source'], labels['series']
)
SELECT client_session, name, model, type, query_source, sum(total) AS total
FROM series
GROUP BY ALL;
COMMENT ON VIEW telemetry_metrics IS 'One row for each metric of a client session and its attributes: the total of its data points.';
COMMENT ON COLUMN telemetry_metrics.client_session IS 'The client''s ID of the session; NULL if unknown.';
COMMENT ON COLUMN telemetry_metrics.name IS 'The name of the metric, such as `claude_code.cost.usage`; NULL if agentobs does not know it.';
COMMENT ON COLUMN telemetry_metrics.model IS 'The model, or NULL.';
COMMENT ON COLUMN telemetry_metrics.type IS 'What is counted, such as `input` or `cacheRead`, or NULL.';
COMMENT ON COLUMN telemetry_metrics.query_source IS 'The purpose of the request as the client names it, or NULL.';
COMMENT ON COLUMN telemetry_metrics.total IS 'The total. Counters are added up; of a cumulative series, the last point counts.';
