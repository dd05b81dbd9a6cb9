-- How many sessions started on each day (UTC), and how did they end?
--
-- $since_ns, $until_ns: only sessions that started from the first time on and before the second, or NULL. failed is the
-- number of sessions that failed, crashed, or whose end could not be written.
SELECT
    make_timestamp_ns(started_ns)::DATE AS day,
    count(*) AS sessions,
    count(*) FILTER (WHERE status = 'completed') AS completed,
    count(*) FILTER (WHERE is_failure(status)) AS failed,
    count(*) FILTER (WHERE status = 'interrupted') AS interrupted,
    count(*) FILTER (WHERE status = 'running') AS running
FROM sessions
WHERE
    NOT is_telemetry
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
GROUP BY day
ORDER BY day;
