-- Which session IDs start or end with a text?
SELECT session_id, any_value(name) AS name FROM session_starts
WHERE starts_with(session_id, $text) OR ends_with(session_id, $text)
GROUP BY session_id ORDER BY min(started_ns) DESC, session_id;
