-- Which commands and MCP calls were observed in a session, with their tool calls, in the order of their starts?
--
-- $session_id: the session. number counts the commands from 1.
WITH effects AS (
    SELECT
        'command' AS kind, command_id AS effect_id, parent_command_id, program AS name, exit_code, signal,
        * EXCLUDE (program, exit_code, signal, parent_command_id)
    FROM commands
    WHERE session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT 'mcp_call' AS kind, call_id AS effect_id, concat_ws(' ', server, coalesce(tool, method)) AS name, *
    FROM mcp_calls
    WHERE session_id = $session_id::VARCHAR
), placed AS (
    SELECT
        *, CASE kind WHEN 'command' THEN row_number() OVER (PARTITION BY kind ORDER BY started_ns, effect_id) END AS number
    FROM effects
)
SELECT
    placed.kind, placed.effect_id, placed.number, placed.parent_command_id, placed.name, placed.interaction_id, placed.lane, placed.turn,
    placed.started_ns, placed.duration_ns, placed.outcome, placed.exit_code, placed.signal, placed.error_code,
    placed.stdout_bytes, placed.stderr_bytes, placed.request_bytes, placed.response_bytes,
    placed.attempt_id, placed.ordinal, placed.link, placed.link_rule,
    coalesce(runs.segment_id, rpc.segment_id) AS segment_id, placed.content
FROM placed
LEFT JOIN command_runs AS runs ON runs.session_id = $session_id::VARCHAR AND runs.command_id = placed.effect_id
LEFT JOIN mcp_requests AS rpc ON rpc.session_id = $session_id::VARCHAR AND rpc.call_id = placed.effect_id
ORDER BY placed.started_ns, placed.effect_id;
