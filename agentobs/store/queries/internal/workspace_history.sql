-- In which states was a workspace, in all sessions, oldest first?
--
-- $workspace_id: the workspace.
SELECT session_id, state, min(at_ns) AS at_ns
FROM workspace_states
WHERE workspace_id = $workspace_id::VARCHAR AND state IS NOT NULL
GROUP BY session_id, state
ORDER BY at_ns, session_id, state;
