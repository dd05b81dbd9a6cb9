-- Which files did a session change, in order, with the states before and after each change?
--
-- $session_id: the session. number counts the changes from 1. since_ns is when the earlier state was read, and until_ns
-- when the later one was read.
WITH known AS (
    SELECT state, any_value(workspace_id) AS workspace_id, min(at_ns + duration_ns) AS until_ns, max(at_ns) AS since_ns
    FROM workspace_states
    WHERE session_id = $session_id::VARCHAR AND state IS NOT NULL
    GROUP BY state
)
SELECT
    row_number() OVER (ORDER BY changed.at_ns, changed.segment_id, changed.sequence) AS number,
    changed.* EXCLUDE (segment_id, sequence, session_id, session_sequence),
    later.workspace_id, later.until_ns, earlier.since_ns
FROM file_changes AS changed
LEFT JOIN known AS later ON later.state = changed.state
LEFT JOIN known AS earlier ON earlier.state = changed.previous_state
WHERE changed.session_id = $session_id::VARCHAR
ORDER BY number;
