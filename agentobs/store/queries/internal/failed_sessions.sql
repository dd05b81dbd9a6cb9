-- Which sessions of a range failed, newest first?
--
-- $since_ns, $until_ns: only sessions that started from the first time on and before the second, or NULL. $limit: the
-- maximum number of rows. cause is the summary in `failures`.
SELECT sessions.*, costs.* EXCLUDE (session_id), failures.summary AS cause
FROM sessions
LEFT JOIN failures ON sessions.session_id = failures.session_id
LEFT JOIN (
    SELECT session_id, cost_status, lower_bound_calls, estimated_calls FROM cost_by_session
) AS costs ON sessions.session_id = costs.session_id
WHERE
    NOT is_telemetry
    AND is_failure(sessions.status)
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
ORDER BY started_ns DESC, sessions.session_id
LIMIT $limit::BIGINT;
