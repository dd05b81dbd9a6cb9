-- Which content do the commands and the MCP calls of a session have, in the order of their starts?
--
-- $session_id: the session.
SELECT 'command' AS kind, segment_id, content, program AS name, outcome, started_ns
FROM command_runs
WHERE session_id = $session_id::VARCHAR AND content IS NOT NULL
UNION ALL
SELECT 'mcp_call' AS kind, segment_id, content, concat_ws(' ', server, coalesce(tool, method)) AS name, outcome, started_ns
FROM mcp_requests
WHERE session_id = $session_id::VARCHAR AND content IS NOT NULL
ORDER BY started_ns;
