-- Which sessions of a range cost most?
--
-- $since_ns, $until_ns: only sessions that started from the first time on and before the second, or NULL. $limit: the
-- maximum number of rows.
SELECT sessions.*, costs.* EXCLUDE (session_id)
FROM sessions
LEFT JOIN (
    SELECT session_id, cost_status, lower_bound_calls, estimated_calls FROM cost_by_session
) AS costs USING (session_id)
WHERE
    NOT is_telemetry
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
ORDER BY cost_usd DESC NULLS LAST, started_ns, session_id
LIMIT $limit::BIGINT;
