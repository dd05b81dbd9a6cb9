-- Which session has this ID or name, newest first?
--
-- $text: the ID. $name: the name as it is stored in the facts.
SELECT session_id FROM (
    SELECT session_id, started_ns, session_id = $text AS by_id
    FROM session_starts WHERE session_id = $text OR name = $name
    UNION ALL
    SELECT session_id, started_ns, true FROM attempts WHERE session_id = $text
)
ORDER BY by_id DESC, started_ns DESC, session_id DESC LIMIT 1;
