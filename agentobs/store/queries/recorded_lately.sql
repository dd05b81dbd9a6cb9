-- What was recorded since an instant, and when was something recorded last?
--
-- $since_ns: the instant, or NULL for ever. contents are where content may go that sessions since then said, each once.
SELECT
    count(*) FILTER (WHERE $since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT) AS sessions,
    count(*) AS all_sessions,
    max(started_ns) AS last_ns,
    list_sort(list(DISTINCT content) FILTER (WHERE $since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT))
        AS contents
FROM session_starts
HAVING count(*) > 0;
