-- What was recorded since a time, and when was the last record?
--
-- $since_ns: the time, or NULL for no limit. contents is the list of the content modes of these sessions. Sessions with
-- telemetry are left out.
SELECT
    count(*) FILTER (WHERE $since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT) AS sessions,
    count(*) AS all_sessions,
    max(started_ns) AS last_ns,
    list_sort(list(DISTINCT content) FILTER (WHERE $since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT))
        AS contents
FROM session_starts
WHERE tags['telemetry_session'] IS NULL
HAVING count(*) > 0;
