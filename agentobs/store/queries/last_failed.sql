-- Which session failed or crashed last?
SELECT session_id, name, status, reason, signature, started_ns, incomplete
FROM sessions
WHERE status IN ('failed', 'crashed') AND NOT is_telemetry
ORDER BY started_ns DESC, session_id DESC
LIMIT 1;
