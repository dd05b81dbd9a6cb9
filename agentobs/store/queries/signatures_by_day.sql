-- In how many of the sessions that started on each day (UTC) was each failure signature found, and how often?
--
-- $since_ns, $until_ns: only sessions that started from the first time on and before the second, or NULL.
-- $first_session_id, $last_session_id: only sessions whose IDs are in this range, or NULL; with bounds from
-- `session_range`, a query about a day does not read the data of years. A session with two signatures counts for both;
-- `sessions_by_day` has the number of sessions.
WITH started AS (
    SELECT session_id, make_timestamp_ns(min(started_ns))::DATE AS day
    FROM session_starts
    GROUP BY session_id
    HAVING
        ($since_ns::BIGINT IS NULL OR min(started_ns) >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR min(started_ns) < $until_ns::BIGINT)
), fired AS (
    SELECT session_id, signature, count(*) AS times
    FROM diagnoses
    WHERE
        ($first_session_id::VARCHAR IS NULL OR session_id >= $first_session_id::VARCHAR)
        AND ($last_session_id::VARCHAR IS NULL OR session_id <= $last_session_id::VARCHAR)
    GROUP BY session_id, signature
)
SELECT day, signature, count(*) AS sessions, sum(times)::BIGINT AS times
FROM fired
JOIN started USING (session_id)
GROUP BY day, signature
ORDER BY day, signature;
