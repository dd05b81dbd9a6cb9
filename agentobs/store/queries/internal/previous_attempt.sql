-- Which attempt with the same endpoint is before one attempt in its lane?
SELECT * FROM attempts
WHERE session_id = $session_id AND lane = $lane AND endpoint = $endpoint
    AND (started_ns, attempt_id) < ($started_ns::BIGINT, $attempt_id::VARCHAR)
ORDER BY started_ns DESC, attempt_id DESC
LIMIT 1;
