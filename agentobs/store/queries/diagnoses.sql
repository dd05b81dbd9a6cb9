-- Which failure signatures fire in a session, where, and how strongly?
--
-- $session_id: only this session, or NULL. $signature: only this one, or NULL. $since_ns: only what showed then or
-- later, or NULL. $limit: at most so many rows, or NULL for all.
SELECT *, value / threshold AS strength
FROM diagnoses
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($signature::VARCHAR IS NULL OR signature = $signature::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
ORDER BY session_id, signature, at_ns, evidence_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
