-- Which attempts are before and after one attempt in its lane?
WITH lane AS (
    SELECT
        attempt_id,
        lag(attempt_id) OVER (ORDER BY started_ns, attempt_id) AS before_id,
        lead(attempt_id) OVER (ORDER BY started_ns, attempt_id) AS after_id
    FROM attempts
    WHERE session_id = $session_id AND lane = $lane
)
FROM lane WHERE attempt_id = $attempt_id;
