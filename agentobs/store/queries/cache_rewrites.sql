-- Which sessions spent at least a tenth of their cost on tokens that had been in the cache, and why?
--
-- $session_id: only this session, or NULL. $since_ns: only findings at or after this time, or NULL. $limit: the maximum
-- number of rows, or NULL for all. One row for each finding; no rows if the signature was not found.
SELECT *, value / threshold AS strength
FROM cache_rewrites
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
ORDER BY at_ns, session_id, evidence_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
