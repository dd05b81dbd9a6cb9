-- Which files did a session change, in order, and which tool call changed each one?
--
-- $session_id: the session.
SELECT
    at_ns, lane, turn, change, path, previous_path, bytes, lines_added, lines_removed, tool_use_id, certainty, rule,
    candidates, late, state
FROM file_changes
WHERE session_id = $session_id::VARCHAR
ORDER BY at_ns, sequence;
