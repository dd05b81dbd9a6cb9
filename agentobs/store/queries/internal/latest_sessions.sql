-- Which sessions started last?
SELECT session_id, name FROM session_starts ORDER BY started_ns DESC, session_id LIMIT 200;
