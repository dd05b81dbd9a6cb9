-- Which failure signatures were found in a session, where, and how strong are they?
--
-- $session_id: only this session, or NULL. $signature: only this signature, or NULL. $since_ns: only findings at or
-- after this time, or NULL. $limit: the maximum number of rows, or NULL for all.
SELECT *, value / threshold AS strength
FROM diagnoses
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($signature::VARCHAR IS NULL OR signature = $signature::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
ORDER BY session_id, signature, at_ns, evidence_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
