-- Which error classes do sessions contain? The search of the list of sessions finds these.
--
-- $session_ids: the sessions.
SELECT session_id, error_class
FROM error_classes
WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]))
ORDER BY session_id, error_class;
