-- Rate limits: what remained of them after each response, and the requests that were rejected because of them.

CREATE OR REPLACE VIEW rate_limits AS
WITH entries AS (
    SELECT
        session_id, lane, turn, attempt_id, started_ns + coalesce(headers_ns, duration_ns) AS at_ns,
        coalesce(model, model_requested) AS model, status, limit_hit, unnest(map_entries(rate_limits)) AS entry
    FROM attempts
    WHERE rate_limits IS NOT NULL AND origin = 'live'
), fields AS (
    SELECT
        * EXCLUDE (entry, limit_hit), split_part(entry.key, '.', 1) AS limit_name, split_part(entry.key, '.', 2) AS field,
        entry.value, limit_hit
    FROM entries
)
SELECT
    session_id,
    any_value(lane) AS lane,
    any_value(turn) AS turn,
    attempt_id,
    any_value(at_ns) AS at_ns,
    any_value(model) AS model,
    any_value(status) AS status,
    limit_name,
    max(value) FILTER (WHERE field = 'limit') AS limit_value,
    max(value) FILTER (WHERE field = 'remaining') AS remaining,
    -- `least` and `greatest` ignore NULL, so the known numbers are checked first.
    CASE
        WHEN count(*) FILTER (WHERE field = 'remaining') > 0 AND max(value) FILTER (WHERE field = 'limit') > 0
        THEN least(max(value) FILTER (WHERE field = 'remaining') / max(value) FILTER (WHERE field = 'limit'), 1)
        WHEN count(*) FILTER (WHERE field = 'utilization') > 0
        THEN greatest(1 - max(value) FILTER (WHERE field = 'utilization'), 0)
    END AS headroom_ratio,
    (max(value) FILTER (WHERE field = 'reset_s') * 1000000000)::BIGINT AS reset_ns,
    coalesce(any_value(limit_hit) = limit_name, false) AS was_hit
FROM fields
GROUP BY session_id, attempt_id, limit_name;
COMMENT ON VIEW rate_limits IS 'One row for each attempt and each rate limit in the headers of its response.';
COMMENT ON COLUMN rate_limits.session_id IS 'The ID of the session.';
COMMENT ON COLUMN rate_limits.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN rate_limits.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN rate_limits.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN rate_limits.at_ns IS 'When the headers of the response arrived. [ns since 1970 UTC]';
COMMENT ON COLUMN rate_limits.model IS 'The model in the response, or else in the request; NULL if unknown.';
COMMENT ON COLUMN rate_limits.status IS 'The HTTP status.';
COMMENT ON COLUMN rate_limits.limit_name IS 'The limit: `requests`, `tokens`, `input_tokens`, `output_tokens`, or for subscriptions `unified_5h`, `unified_7d` and others.';
COMMENT ON COLUMN rate_limits.limit_value IS 'The limit, in requests or tokens per minute; NULL if the response does not contain it, as for unified limits.';
COMMENT ON COLUMN rate_limits.remaining IS 'What remained of the limit; the provider rounds tokens to thousands. NULL if the response does not contain it.';
COMMENT ON COLUMN rate_limits.headroom_ratio IS 'The remaining share of the limit, from 0 to 1; NULL if unknown.';
COMMENT ON COLUMN rate_limits.reset_ns IS 'When the limit is completely available again; NULL if unknown. [ns since 1970 UTC]';
COMMENT ON COLUMN rate_limits.was_hit IS 'Whether the request was rejected because of this limit.';

CREATE OR REPLACE VIEW rate_limit_headroom AS
WITH hits AS (
    SELECT
        coalesce(model, model_requested) AS model,
        limit_hit AS limit_name,
        time_bucket(INTERVAL 1 HOUR, make_timestamp_ns(started_ns)::TIMESTAMP) AS hour,
        count(*) AS rejected
    FROM attempts
    WHERE status = 429 AND origin = 'live'
    GROUP BY ALL
), lowest AS (
    SELECT
        model,
        limit_name,
        time_bucket(INTERVAL 1 HOUR, make_timestamp_ns(at_ns)::TIMESTAMP) AS hour,
        count(*) AS responses,
        max(limit_value) AS limit_value,
        min(remaining) AS lowest_remaining,
        min(headroom_ratio) AS lowest_ratio,
        arg_min(session_id, headroom_ratio) AS session_id,
        arg_min(attempt_id, headroom_ratio) AS attempt_id
    FROM rate_limits
    -- Some limits, such as `unified`, have only the time of the reset.
    WHERE coalesce(limit_value, remaining, headroom_ratio) IS NOT NULL
    GROUP BY ALL
)
SELECT
    coalesce(lowest.hour, hits.hour) AS hour,
    coalesce(lowest.model, hits.model) AS model,
    coalesce(lowest.limit_name, hits.limit_name) AS limit_name,
    coalesce(responses, 0) AS responses,
    limit_value,
    lowest_remaining,
    lowest_ratio,
    coalesce(rejected, 0) AS rejected,
    session_id,
    attempt_id
FROM lowest
FULL JOIN hits
    ON lowest.model IS NOT DISTINCT FROM hits.model AND lowest.limit_name IS NOT DISTINCT FROM hits.limit_name
    AND lowest.hour = hits.hour;
COMMENT ON VIEW rate_limit_headroom IS 'One row for each hour, model and rate limit: the lowest headroom, and the requests that were rejected.';
COMMENT ON COLUMN rate_limit_headroom.hour IS 'The start of the hour. [UTC]';
COMMENT ON COLUMN rate_limit_headroom.model IS 'The model in the responses, or else in the requests; NULL if unknown.';
COMMENT ON COLUMN rate_limit_headroom.limit_name IS 'The limit, as in rate_limits, or a limit without headers such as `concurrent_connections`; NULL for rejected requests whose limit is unknown.';
COMMENT ON COLUMN rate_limit_headroom.responses IS 'The number of responses that contain the limit.';
COMMENT ON COLUMN rate_limit_headroom.limit_value IS 'The limit, in requests or tokens per minute; the highest value of the hour. NULL if no response contains it.';
COMMENT ON COLUMN rate_limit_headroom.lowest_remaining IS 'The lowest remaining amount; NULL if no response contains it.';
COMMENT ON COLUMN rate_limit_headroom.lowest_ratio IS 'The lowest remaining share of the limit, from 0 to 1; NULL if unknown.';
COMMENT ON COLUMN rate_limit_headroom.rejected IS 'The number of requests that were rejected with the status 429 because of this limit.';
COMMENT ON COLUMN rate_limit_headroom.session_id IS 'The session with the lowest share; NULL if no response contains the limit.';
COMMENT ON COLUMN rate_limit_headroom.attempt_id IS 'The attempt with the lowest share; NULL if no response contains the limit.';
