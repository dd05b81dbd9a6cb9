-- Which session IDs are before and after each of these IDs in alphabetical order?
--
-- $session_ids: the sessions.
WITH known AS (
    SELECT DISTINCT session_id FROM session_starts
), sorted AS (
    SELECT
        session_id,
        lag(session_id) OVER (ORDER BY session_id) AS before,
        lead(session_id) OVER (ORDER BY session_id) AS after
    FROM known
)
SELECT session_id, before, after FROM sorted
WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]))
ORDER BY session_id;
