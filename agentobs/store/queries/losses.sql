-- Which sessions have lost records, and why?
--
-- $session_id: only this session, or NULL. $since_ns: only losses at or after this time, or NULL. $until_ns: only
-- losses before this time, or NULL. where_lost is `queue` if the queue of the recorder was full, or `recorder` if a
-- record could not be written; what is the kind of the records. Both are NULL for a session that ended with dropped
-- records about which nothing else is recorded.
WITH known_losses AS (
    SELECT session_id, 'queue' AS where_lost, label AS what, numbers['count']::BIGINT AS records, at_ns
    FROM events
    WHERE kind = 'drop'
    UNION ALL
    SELECT session_id, 'recorder' AS where_lost, concat_ws(' ', kind, reason) AS what, records, at_ns
    FROM gaps
), all_losses AS (
    SELECT * FROM known_losses
    UNION ALL
    SELECT ends.session_id, NULL AS where_lost, NULL AS what, ends.dropped AS records, ends.ended_ns AS at_ns
    FROM session_ends AS ends
    ANTI JOIN known_losses ON ends.session_id = known_losses.session_id
    WHERE ends.dropped > 0
)
SELECT session_id, where_lost, what, sum(records)::BIGINT AS records, max(at_ns) AS at_ns
FROM all_losses
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY session_id, where_lost, what
ORDER BY at_ns DESC, session_id, where_lost, what;
