-- Which segments contain records of a session, oldest first?
--
-- $session_id: the session.
WITH held AS (
    SELECT session_id, segment_id, sequence FROM session_starts
    UNION ALL SELECT session_id, segment_id, sequence FROM session_ends
    UNION ALL SELECT session_id, segment_id, sequence FROM interaction_starts
    UNION ALL SELECT session_id, segment_id, sequence FROM interaction_ends
    UNION ALL SELECT session_id, segment_id, sequence FROM attempts
    UNION ALL SELECT session_id, segment_id, sequence FROM usage
    UNION ALL SELECT session_id, segment_id, sequence FROM tool_uses
    UNION ALL SELECT session_id, segment_id, sequence FROM tool_results
    UNION ALL SELECT session_id, segment_id, sequence FROM provider_tool_uses
    UNION ALL SELECT session_id, segment_id, sequence FROM provider_tool_results
    UNION ALL SELECT session_id, segment_id, sequence FROM events
    UNION ALL SELECT session_id, segment_id, sequence FROM span_starts
    UNION ALL SELECT session_id, segment_id, sequence FROM span_ends
    UNION ALL SELECT session_id, segment_id, sequence FROM session_titles
    UNION ALL SELECT session_id, segment_id, sequence FROM git_states
    UNION ALL SELECT session_id, segment_id, sequence FROM scores
    UNION ALL SELECT session_id, segment_id, sequence FROM workspace_states
    UNION ALL SELECT session_id, segment_id, sequence FROM file_changes
    UNION ALL SELECT session_id, segment_id, sequence FROM command_runs
    UNION ALL SELECT session_id, segment_id, sequence FROM mcp_requests
    UNION ALL SELECT session_id, segment_id, sequence FROM effect_links
)
SELECT
    held.segment_id,
    any_value(segments.state) AS state,
    count(*) AS records,
    min(held.sequence) AS first_sequence,
    max(held.sequence) AS last_sequence,
    any_value(segments.damaged_records) AS damaged_records,
    any_value(segments.missing_records) AS missing_records
FROM held
LEFT JOIN segments ON held.segment_id = segments.segment_id
WHERE held.session_id = $session_id::VARCHAR
GROUP BY held.segment_id
ORDER BY held.segment_id;
