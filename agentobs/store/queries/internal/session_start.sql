-- With what name and content mode did one session start, and when?
SELECT session_id, name, content, started_ns
FROM session_starts
WHERE session_id = $session_id::VARCHAR
ORDER BY started_ns
LIMIT 1;
