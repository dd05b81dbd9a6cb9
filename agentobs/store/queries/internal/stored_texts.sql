-- Which of the given digests occur in the facts in place of a text, such as a name, a tag, a reason, a model or an ID?
--
-- $texts: a list of digests. The fields are those of internal/label_texts, and the names, tags and reasons of sessions.
WITH fields(texts) AS (
    SELECT list_concat([name], map_values(tags)) FROM session_starts
    UNION ALL
    SELECT [reason] FROM session_ends
    UNION ALL
    SELECT [name, tool_use_id, lane] FROM tool_uses
    UNION ALL
    SELECT [tool, tool_use_id, lane, error_class, error_file] FROM tool_results
    UNION ALL
    SELECT [error_class, error_file] FROM session_ends
    UNION ALL
    SELECT [name, server, tool_use_id, caller_id, lane, batch_result_id] FROM provider_tool_uses
    UNION ALL
    SELECT [type, tool_use_id, error_code, stop_reason, lane, batch_result_id]
    FROM provider_tool_results
    UNION ALL
    SELECT [name, label, lane] FROM span_starts
    UNION ALL
    SELECT [error_type] FROM span_ends
    UNION ALL
    SELECT [title] FROM session_titles
    UNION ALL
    SELECT [repository, branch, commit, directory, lane] FROM git_states
    UNION ALL
    SELECT [name, label, comment, tool_use_id, lane] FROM scores
    UNION ALL
    SELECT [tree, repository, branch, commit, lane] FROM workspace_states
    UNION ALL
    SELECT [path, previous_path, previous_blob, blob, tool_use_id, lane] FROM file_changes
    UNION ALL
    SELECT [program, lane] FROM command_runs
    UNION ALL
    SELECT [server, method, tool, lane] FROM mcp_requests
    UNION ALL
    SELECT [tool_use_id, lane] FROM effect_links
    UNION ALL
    SELECT [kind, label, lane] FROM events
    UNION ALL
    SELECT list_concat(map_keys(labels), map_values(labels))
    FROM events WHERE labels IS NOT NULL
    UNION ALL
    SELECT [rule, tool, tool_use_id, lane] FROM permissions
    UNION ALL
    SELECT [key, lane] FROM world_answers
    UNION ALL
    SELECT [result, lane] FROM interaction_ends
    UNION ALL
    SELECT [lane] FROM interaction_starts
    UNION ALL
    SELECT [miss_reason] FROM prefixes
    UNION ALL
    SELECT [model, service_tier, inference_geo, speed, kind, note, batch_result_id]
    FROM usage
    UNION ALL
    SELECT list_concat(map_keys(server_requests), map_keys(other_counts))
    FROM usage WHERE server_requests IS NOT NULL OR other_counts IS NOT NULL
    UNION ALL
    SELECT
        [model, model_requested, method, error_type, stop_reason, message_id, request_id, lane, reported_lane]
    FROM attempts
    UNION ALL
    SELECT map_values(parameters) FROM attempts WHERE parameters IS NOT NULL
    UNION ALL
    SELECT
        list_concat([entry, agentobs_version, sdk_version, python_version, platform], map_keys(tags))
    FROM session_starts
    UNION ALL
    SELECT [signature, result_type] FROM session_ends
), written(text) AS (
    SELECT unnest(regexp_extract_all(text, 'digest:[0-9a-f]{24}'))
    FROM (SELECT unnest(texts) AS text FROM fields)
    WHERE contains(text, 'digest:')
)
SELECT DISTINCT text FROM written WHERE list_contains($texts::VARCHAR[], text);
