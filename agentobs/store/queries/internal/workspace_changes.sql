-- Which changes of files were recorded in a workspace, in all sessions, with their tool calls?
--
-- $workspace_id: the workspace. since_ns is when the earlier state was read.
WITH known AS (
    SELECT session_id, state, max(at_ns) AS since_ns
    FROM workspace_states
    WHERE workspace_id = $workspace_id::VARCHAR AND state IS NOT NULL
    GROUP BY session_id, state
)
SELECT
    changed.session_id, changed.state, changed.path, changed.blob, changed.at_ns, earlier.since_ns,
    coalesce(calls.interaction_id, changed.interaction_id) AS interaction_id, changed.lane, changed.turn,
    calls.name AS tool, changed.tool_use_id, changed.certainty, changed.rule, changed.candidates
FROM file_changes AS changed
JOIN known AS later ON later.session_id = changed.session_id AND later.state = changed.state
LEFT JOIN known AS earlier ON earlier.session_id = changed.session_id AND earlier.state = changed.previous_state
LEFT JOIN tool_uses AS calls
    ON calls.session_id = changed.session_id
    AND calls.attempt_id = changed.attempt_id
    AND calls.ordinal = changed.ordinal
ORDER BY changed.at_ns, changed.segment_id, changed.sequence;
