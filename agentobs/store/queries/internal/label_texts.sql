-- Which content contains the texts of the given digests, in the newest sessions with each digest?
--
-- $digests: a list of digests. $most: the maximum number of sessions for each digest.
WITH wanted AS (
    SELECT unnest($digests::VARCHAR[]) AS digest
), fields(texts, session_id, segment_id, at_ns) AS (
    SELECT [name, tool_use_id, lane], session_id, segment_id, requested_ns FROM tool_uses
    UNION ALL
    SELECT [tool, tool_use_id, lane, error_class, error_file], session_id, segment_id, result_ns FROM tool_results
    UNION ALL
    SELECT [error_class, error_file], session_id, segment_id, ended_ns FROM session_ends
    UNION ALL
    SELECT [name, server, tool_use_id, caller_id, lane, batch_result_id], session_id, segment_id, requested_ns FROM provider_tool_uses
    UNION ALL
    SELECT [type, tool_use_id, error_code, stop_reason, lane, batch_result_id], session_id, segment_id, result_ns
    FROM provider_tool_results
    UNION ALL
    SELECT [name, label, lane], session_id, segment_id, started_ns FROM span_starts
    UNION ALL
    SELECT [error_type], session_id, segment_id, ended_ns FROM span_ends
    UNION ALL
    SELECT [title], session_id, segment_id, at_ns FROM session_titles
    UNION ALL
    SELECT [repository, branch, commit, directory, lane], session_id, segment_id, at_ns FROM git_states
    UNION ALL
    SELECT [name, label, comment, tool_use_id, lane], session_id, segment_id, at_ns FROM scores
    UNION ALL
    SELECT [tree, repository, branch, commit, lane], session_id, segment_id, at_ns FROM workspace_states
    UNION ALL
    SELECT [path, previous_path, previous_blob, blob, tool_use_id, lane], session_id, segment_id, at_ns
    FROM file_changes
    UNION ALL
    SELECT [program, lane], session_id, segment_id, started_ns FROM command_runs
    UNION ALL
    SELECT [server, method, tool, lane], session_id, segment_id, started_ns FROM mcp_requests
    UNION ALL
    SELECT [tool_use_id, lane], session_id, segment_id, 0 FROM effect_links
    UNION ALL
    SELECT [kind, label, lane], session_id, segment_id, at_ns FROM events
    UNION ALL
    SELECT list_concat(map_keys(labels), map_values(labels)), session_id, segment_id, at_ns
    FROM events WHERE labels IS NOT NULL
    UNION ALL
    SELECT [rule, tool, tool_use_id, lane], session_id, segment_id, at_ns FROM permissions
    UNION ALL
    SELECT [key, lane], session_id, segment_id, started_ns FROM world_answers
    UNION ALL
    SELECT [result, lane], session_id, segment_id, ended_ns FROM interaction_ends
    UNION ALL
    SELECT [lane], session_id, segment_id, started_ns FROM interaction_starts
    UNION ALL
    SELECT [miss_reason], session_id, segment_id, 0 FROM prefixes
    UNION ALL
    SELECT [model, service_tier, inference_geo, speed, kind, note, batch_result_id], session_id, segment_id, at_ns
    FROM usage
    UNION ALL
    SELECT list_concat(map_keys(server_requests), map_keys(other_counts)), session_id, segment_id, at_ns
    FROM usage WHERE server_requests IS NOT NULL OR other_counts IS NOT NULL
    UNION ALL
    SELECT
        [model, model_requested, method, error_type, stop_reason, message_id, request_id, lane, reported_lane],
        session_id, segment_id, started_ns
    FROM attempts
    UNION ALL
    SELECT map_values(parameters), session_id, segment_id, started_ns FROM attempts WHERE parameters IS NOT NULL
    UNION ALL
    SELECT
        list_concat([entry, agentobs_version, sdk_version, python_version, platform], map_keys(tags)),
        session_id, segment_id, started_ns
    FROM session_starts
    UNION ALL
    SELECT [signature, result_type], session_id, segment_id, ended_ns FROM session_ends
), facts(text, session_id, segment_id, at_ns) AS (
    SELECT unnest(regexp_extract_all(text, 'digest:[0-9a-f]{24}')), session_id, segment_id, at_ns
    FROM (SELECT unnest(texts) AS text, session_id, segment_id, at_ns FROM fields)
    WHERE contains(text, 'digest:')
), tags(text, field, session_id, segment_id, content_id, at_ns) AS (
    -- The content of a session's start contains its tags by name. If a digest replaces the name, the text has its own line.
    SELECT
        entry.value,
        if(starts_with(entry.key, 'digest:'), 'label', 'tags.' || entry.key),
        session_id,
        segment_id,
        if(
            starts_with(entry.key, 'digest:'),
            'label:' || session_id || ':' || split_part(entry.value, ':', 2),
            arguments_content
        ),
        started_ns
    FROM (SELECT unnest(map_entries(tags)) AS entry, * EXCLUDE (tags) FROM session_starts WHERE tags IS NOT NULL)
)
SELECT digest, field, segment_id, content_id, row_number() OVER (PARTITION BY digest ORDER BY at_ns DESC) AS place
FROM (
    SELECT name, 'name', session_id, segment_id, arguments_content, started_ns FROM session_starts
    UNION ALL
    SELECT text, field, session_id, segment_id, content_id, at_ns FROM tags
    UNION ALL
    SELECT reason, 'reason', session_id, segment_id, end_content, ended_ns FROM session_ends
    UNION ALL
    SELECT text, 'label', session_id, segment_id, 'label:' || session_id || ':' || split_part(text, ':', 2), max(at_ns)
    FROM facts
    WHERE text IN (SELECT digest FROM wanted)
    GROUP BY text, session_id, segment_id
) AS written(digest, field, session_id, segment_id, content_id, at_ns)
WHERE digest IN (SELECT digest FROM wanted) AND content_id IS NOT NULL
    AND session_id NOT IN (SELECT session_id FROM prunings)
QUALIFY place <= $most::BIGINT;
