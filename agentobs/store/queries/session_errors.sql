-- Which errors occurred in a session: of tool calls, attempts, interactions and the session itself?
--
-- $session_id: the session. In the order in which the operations ended.
SELECT at_ns, lane, turn, kind, name, error_origin, error_class, error_file, error_line, outcome, status, request_id,
    limit_hit, id
FROM errors
WHERE session_id = $session_id::VARCHAR
ORDER BY at_ns, CASE kind WHEN 'attempt' THEN 0 WHEN 'tool_call' THEN 1 WHEN 'interaction' THEN 2 ELSE 3 END, id;
