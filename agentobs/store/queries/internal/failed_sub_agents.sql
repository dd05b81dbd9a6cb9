-- Which tool calls of one session started a sub-agent and failed, and of which type is the agent?
WITH types AS (
    SELECT lane, arg_min(label, started_ns) AS agent_type
    FROM spans
    WHERE session_id = $session_id::VARCHAR AND name = 'sub_agent'
    GROUP BY lane
)
SELECT calls.attempt_id, calls.ordinal, calls.tool_use_id, types.agent_type
FROM tool_calls AS calls
LEFT JOIN types ON concat_ws('/', calls.lane, calls.tool_use_id) = types.lane
WHERE
    calls.session_id = $session_id::VARCHAR AND calls.is_error
    AND concat_ws('/', calls.lane, calls.tool_use_id) IN (
        SELECT lane FROM attempts WHERE session_id = $session_id::VARCHAR
    )
ORDER BY calls.requested_ns, calls.ordinal;
