-- In which interaction, lane and turn was a tool call requested? One row for each lane with a call of this ID.
SELECT arg_max(interaction_id, requested_ns) AS interaction_id, lane, max(turn) AS turn
FROM tool_calls
WHERE
    session_id = $session_id::VARCHAR
    AND tool_use_id = $tool_use_id::VARCHAR
    AND ($lane::VARCHAR IS NULL OR lane = $lane::VARCHAR)
GROUP BY lane;
