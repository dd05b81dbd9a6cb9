-- Which sessions have lost records, and why?
--
-- $session_id: only this session, or NULL. $since_ns: only losses then or later, or NULL. $until_ns: only losses
-- before it, or NULL. where_lost is `queue` if a record was not taken in time, or `recorder` if it could not
-- be written; what is the kind of the records. A session that ended with a loss that is recorded nowhere else has a row without
-- either.
WITH told AS (
    SELECT session_id, 'queue' AS where_lost, label AS what, numbers['count']::BIGINT AS records, at_ns
    FROM events
    WHERE kind = 'drop'
    UNION ALL
    SELECT session_id, 'recorder' AS where_lost, concat_ws(' ', kind, reason) AS what, records, at_ns
    FROM gaps
), all_told AS (
    SELECT * FROM told
    UNION ALL
    SELECT ends.session_id, NULL AS where_lost, NULL AS what, ends.dropped AS records, ends.ended_ns AS at_ns
    FROM session_ends AS ends
    ANTI JOIN told ON ends.session_id = told.session_id
    WHERE ends.dropped > 0
)
SELECT session_id, where_lost, what, sum(records)::BIGINT AS records, max(at_ns) AS at_ns
FROM all_told
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY session_id, where_lost, what
ORDER BY at_ns DESC, session_id, where_lost, what;
