-- Which tools are the slowest, excluding approval waits?
--
-- $session_id: only this session, or NULL. $since_ns: only calls requested at or after this time, or NULL. $limit: the
-- maximum number of tools, or NULL for all. Percentiles are exact. timed_calls is the number of calls whose run time
-- was recorded. For other calls, the time is measured from the response with the call to the request with its result,
-- so it includes other work of the client. The time excludes approval waits, even in an agent that the tool runs. Calls
-- that never ran, such as denied calls, are counted but have no time. unseen_waits is the number of calls whose time
-- includes any wait for approval, because their client does not record these waits. errors is the number of failed calls,
-- without the denied ones.
WITH imported AS (
    SELECT session_id FROM session_starts WHERE source <> 'recorded'
), calls AS (
    SELECT
        * REPLACE (CASE WHEN has_run THEN duration_ns END AS duration_ns),
        CASE WHEN has_run THEN coalesce(duration_ns, result_ns - requested_ns) END AS took_ns
    FROM (
        SELECT *, coalesce(outcome, '') NOT IN (
            'invalid', 'unknown', 'denied', 'blocked', 'answered', 'unavailable', 'skipped', 'aborted', 'duplicate',
            'deduplicated'
        ) AS has_run
        FROM tool_calls
    )
    WHERE
        ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR requested_ns >= $since_ns::BIGINT)
), waits AS (
    -- The lane of an agent that a call started begins with the lane of the call.
    SELECT calls.session_id, calls.lane, calls.tool_use_id, sum(spans.duration_ns) AS waited_ns
    FROM calls
    JOIN spans
        ON calls.session_id = spans.session_id
        AND (
            spans.lane = calls.lane || '/' || calls.tool_use_id
            OR starts_with(spans.lane, calls.lane || '/' || calls.tool_use_id || '/')
        )
    WHERE spans.name IN ('blocked_on_user', 'queued') AND contains(spans.lane, '/') AND spans.status <> 'orphaned'
    GROUP BY calls.session_id, calls.lane, calls.tool_use_id
), net AS (
    SELECT calls.*, greatest(took_ns - coalesce(waits.waited_ns, 0), 0) AS net_ns
    FROM calls
    LEFT JOIN waits USING (session_id, lane, tool_use_id)
)
SELECT
    name,
    count(*) AS calls,
    count(duration_ns) AS timed_calls,
    count(*) FILTER (WHERE is_error AND coalesce(outcome, '') NOT IN ('denied', 'blocked')) AS errors,
    quantile_disc(net_ns, 0.5) AS p50_ns,
    quantile_disc(net_ns, 0.95) AS p95_ns,
    quantile_disc(net_ns, 0.99) AS p99_ns,
    max(net_ns) AS max_ns,
    sum(net_ns) AS total_ns,
    sum(approval_wait_ns) AS approval_wait_ns,
    count(net_ns) FILTER (
        WHERE runs_on = 'client' AND approval_wait_ns IS NULL AND (source = 'wire' OR session_id IN (FROM imported))
    ) AS unseen_waits,
    count(*) FILTER (WHERE outcome IN ('denied', 'blocked')) AS denied
FROM net
GROUP BY name
ORDER BY p95_ns DESC NULLS LAST, name
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
