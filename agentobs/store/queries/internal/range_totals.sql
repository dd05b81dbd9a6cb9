-- How many sessions of a range exist, failed, and are still running?
--
-- $since_ns, $until_ns: only sessions that started from the first time on and before the second, or NULL.
SELECT
    count(*) AS sessions,
    count(*) FILTER (WHERE is_failure(status)) AS failed,
    count(*) FILTER (WHERE status = 'running') AS running
FROM sessions
WHERE
    NOT is_telemetry
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT);
