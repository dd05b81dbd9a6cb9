-- With what name and content mode did one session start, when, and where was it recorded?
SELECT session_id, name, content, started_ns, source
FROM session_starts
WHERE session_id = $session_id::VARCHAR
ORDER BY started_ns
LIMIT 1;
