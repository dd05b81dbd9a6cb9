-- How long do the tools run?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls requested from the first time on and before
-- the second, or NULL. Only calls whose run time was recorded have a duration. Percentiles are exact. unseen_waits is the
-- number of calls whose duration includes any wait for approval, because it is from the log of another client. errors is
-- the number of failed calls, without the denied ones.
SELECT
    name,
    count(*) AS calls,
    count(duration_ns) AS timed_calls,
    count(*) FILTER (WHERE is_error AND coalesce(outcome, '') NOT IN ('denied', 'blocked')) AS errors,
    quantile_disc(duration_ns, 0.5) AS p50_ns,
    quantile_disc(duration_ns, 0.9) AS p90_ns,
    quantile_disc(duration_ns, 0.99) AS p99_ns,
    max(duration_ns) AS max_ns,
    sum(duration_ns) AS total_ns,
    count(duration_ns) FILTER (
        WHERE runs_on = 'client' AND approval_wait_ns IS NULL
            AND session_id IN (SELECT session_id FROM session_starts WHERE source <> 'recorded')
    ) AS unseen_waits,
    count(*) FILTER (WHERE outcome IN ('denied', 'blocked')) AS denied
FROM tool_calls
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR requested_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR requested_ns < $until_ns::BIGINT)
GROUP BY name
ORDER BY total_ns DESC NULLS LAST, name;
