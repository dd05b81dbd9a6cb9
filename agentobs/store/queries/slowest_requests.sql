-- Which LLM requests took longest, including retries and the waits between them?
--
-- $session_id: only this session, or NULL. $limit: the maximum number of rows, or NULL for ten.
SELECT
    session_id,
    llm_request_id,
    lane,
    turn,
    endpoint,
    coalesce(model, model_requested) AS model,
    attempts,
    outcome,
    status,
    error_type,
    started_ns,
    duration_ns
FROM llm_requests
WHERE $session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR
ORDER BY duration_ns DESC, llm_request_id
LIMIT coalesce($limit::BIGINT, 10);
