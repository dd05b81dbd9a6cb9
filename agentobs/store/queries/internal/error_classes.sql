-- Which error classes do sessions contain? The search of the list of sessions finds these.
--
-- $session_ids: the sessions. The classes are those of the view `errors`, without the joins that find the steps.
SELECT session_id, error_class
FROM (
    SELECT session_id, error_type AS error_class FROM attempts WHERE outcome NOT IN ('ok', 'cancelled')
    UNION SELECT session_id, error_class FROM tool_results WHERE is_error
    UNION SELECT session_id, error_code FROM provider_tool_results WHERE is_error
    UNION SELECT session_id, error_class FROM session_ends WHERE outcome = 'failed'
)
WHERE error_class IS NOT NULL AND session_id IN (SELECT unnest($session_ids::VARCHAR[]))
ORDER BY session_id, error_class;
