-- Which sessions failed, and which failure signatures were found, how often, and with what maximum strength?
--
-- A failed session has a row with the signature `failure`, whose subject is the failed step and whose detail is the
-- cause.
-- $since_ns: only sessions that started at or after this time, or NULL. $first_session_id, $last_session_id: only
-- sessions whose IDs are in this range, or NULL; with bounds from `session_range`, a query about a day does not read
-- the data of years. $limit: the maximum number of rows, or NULL for all. The latest sessions come first.
WITH started AS (
    SELECT session_id, min(started_ns) AS started_ns, arg_min(name, started_ns) AS name
    FROM session_starts
    GROUP BY session_id
    HAVING $since_ns::BIGINT IS NULL OR min(started_ns) >= $since_ns::BIGINT
)
SELECT
    session_id,
    any_value(started.name) AS name,
    any_value(started.started_ns) AS started_ns,
    signature,
    count(*) AS times,
    max(value / threshold) AS strength,
    arg_max(about, value / threshold) AS about,
    arg_max(detail, value / threshold) AS detail
FROM (
    FROM (
        SELECT signature, session_id, value, threshold, about, detail FROM diagnoses
        UNION ALL
        SELECT 'failure', session_id, 1.0, 1.0, step_name, summary FROM failures
    )
    WHERE
        ($first_session_id::VARCHAR IS NULL OR session_id >= $first_session_id::VARCHAR)
        AND ($last_session_id::VARCHAR IS NULL OR session_id <= $last_session_id::VARCHAR)
)
JOIN started USING (session_id)
GROUP BY session_id, signature
ORDER BY started_ns DESC, session_id, signature
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
