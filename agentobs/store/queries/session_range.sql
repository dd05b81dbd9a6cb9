-- Which are the least and the greatest id among the sessions that started since an instant?
--
-- $since_ns: the instant, or NULL for ever. Ids are made in the order of time, so that all between them are about those.
SELECT min(session_id) AS first_session_id, max(session_id) AS last_session_id
FROM session_starts
WHERE $since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT
HAVING count(*) > 0;
