-- How many sessions of a range were there, failed, and are running?
--
-- $since_ns, $until_ns: only sessions that started then or later, and before then, or NULL.
SELECT
    count(*) AS sessions,
    count(*) FILTER (WHERE status IN ('failed', 'crashed', 'incomplete')) AS failed,
    count(*) FILTER (WHERE status = 'running') AS running
FROM sessions
WHERE
    ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT);
