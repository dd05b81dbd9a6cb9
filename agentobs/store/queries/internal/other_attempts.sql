-- Which other attempts of the same request were there?
SELECT attempt_id, attempt, started_ns, duration_ns, outcome, status, error_type, retry_after_ms
FROM attempts
WHERE session_id = $session_id AND llm_request_id = $llm_request_id AND attempt_id <> $attempt_id
ORDER BY attempt, started_ns;
