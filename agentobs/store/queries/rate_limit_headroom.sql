-- How close did each model come to each rate limit, hour by hour, and how many requests were rejected?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only attempts that were sent from the first time on and
-- before the second, or NULL. $limit_name: only this limit, or NULL. The latest hour comes first. A row without a limit
-- counts rejected requests whose limit is unknown. Limits with only a known reset time are left out.
WITH seen AS (
    SELECT
        time_bucket(INTERVAL 1 HOUR, make_timestamp_ns(at_ns)::TIMESTAMP) AS hour, model, limit_name, limit_value,
        remaining, headroom_ratio, session_id, 0 AS rejected
    FROM rate_limits
    WHERE
        coalesce(limit_value, remaining, headroom_ratio) IS NOT NULL
        AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
    UNION ALL BY NAME
    SELECT
        time_bucket(INTERVAL 1 HOUR, make_timestamp_ns(started_ns)::TIMESTAMP) AS hour,
        coalesce(model, model_requested) AS model, limit_hit AS limit_name, 1 AS rejected
    FROM attempts
    WHERE
        status = 429 AND origin = 'live'
        AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
)
SELECT
    hour,
    model,
    limit_name,
    count(headroom_ratio) AS responses,
    max(limit_value) AS limit_value,
    min(remaining) AS lowest_remaining,
    min(headroom_ratio) AS lowest_ratio,
    sum(rejected) AS rejected,
    arg_min(session_id, headroom_ratio) AS session_id
FROM seen
WHERE $limit_name::VARCHAR IS NULL OR limit_name = $limit_name::VARCHAR
GROUP BY hour, model, limit_name
ORDER BY hour DESC, model, limit_name;
