-- What are the lowest and the highest ID among the sessions that started since a time?
--
-- $since_ns: the time, or NULL for no limit. IDs are generated in time order, so all IDs between these two are of the
-- same period.
SELECT min(session_id) AS first_session_id, max(session_id) AS last_session_id
FROM session_starts
WHERE $since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT
HAVING count(*) > 0;
