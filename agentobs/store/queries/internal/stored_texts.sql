-- Which of the given digests occur in the facts in place of a text, such as a name, a tag, a reason, a model or an ID?
--
-- $texts: a list of digests.
WITH fields(text) AS (
    SELECT unnest(list_concat([name, entry], map_keys(tags), map_values(tags))) FROM session_starts
    UNION ALL
    SELECT unnest([reason, signature, result_type]) FROM session_ends
    UNION ALL
    SELECT unnest([name, tool_use_id]) FROM tool_uses
    UNION ALL
    SELECT unnest([tool, tool_use_id]) FROM tool_results
    UNION ALL
    SELECT unnest([name, server, tool_use_id, caller_id]) FROM provider_tool_uses
    UNION ALL
    SELECT unnest([type, tool_use_id, error_code, stop_reason]) FROM provider_tool_results
    UNION ALL
    SELECT unnest([name, label]) FROM span_starts
    UNION ALL
    SELECT error_type FROM span_ends
    UNION ALL
    SELECT unnest(list_concat([kind, label], map_values(labels))) FROM events
    UNION ALL
    SELECT unnest([rule, tool, tool_use_id]) FROM permissions
    UNION ALL
    SELECT key FROM world_answers
    UNION ALL
    SELECT unnest([model, service_tier, inference_geo, speed, kind, batch_result_id]) FROM usage
    UNION ALL
    SELECT unnest([model, model_requested, error_type, stop_reason, message_id, request_id]) FROM attempts
)
SELECT DISTINCT text FROM fields WHERE list_contains($texts::VARCHAR[], text);
