-- Which sessions completed without any recorded request to the provider?
--
-- $since_ns: only sessions that started from this time on, or NULL.
SELECT session_id
FROM sessions
WHERE
    NOT is_telemetry
    AND status = 'completed'
    AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.session_id = sessions.session_id)
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
ORDER BY started_ns DESC;
