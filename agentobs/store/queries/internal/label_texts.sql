-- Which content contains the texts of the given digests, in the newest sessions with each digest?
--
-- $digests: a list of digests. $most: the maximum number of sessions for each digest.
WITH wanted AS (
    SELECT unnest($digests::VARCHAR[]) AS digest
), facts(text, session_id, segment_id, at_ns) AS (
    SELECT unnest([name, tool_use_id]), session_id, segment_id, requested_ns FROM tool_uses
    UNION ALL
    SELECT unnest([tool, tool_use_id]), session_id, segment_id, result_ns FROM tool_results
    UNION ALL
    SELECT unnest([name, label]), session_id, segment_id, started_ns FROM span_starts
    UNION ALL
    SELECT unnest([kind, label]), session_id, segment_id, at_ns FROM events
    UNION ALL
    SELECT unnest(map_values(labels)), session_id, segment_id, at_ns FROM events WHERE labels IS NOT NULL
    UNION ALL
    SELECT unnest([rule, tool]), session_id, segment_id, at_ns FROM permissions
    UNION ALL
    SELECT title, session_id, segment_id, at_ns FROM session_titles
    UNION ALL
    SELECT unnest([repository, branch, directory]), session_id, segment_id, at_ns FROM git_states
    UNION ALL
    SELECT unnest([name, comment, tool_use_id]), session_id, segment_id, at_ns FROM scores
    UNION ALL
    SELECT key, session_id, segment_id, started_ns FROM world_answers
    UNION ALL
    SELECT
        unnest([model, service_tier, inference_geo, speed, kind, note, batch_result_id]),
        session_id, segment_id, at_ns
    FROM usage
    UNION ALL
    SELECT
        unnest([model, model_requested, error_type, stop_reason, message_id, request_id]),
        session_id, segment_id, started_ns
    FROM attempts
), tags(text, field, session_id, segment_id, content_id, at_ns) AS (
    SELECT entry.value, 'tags.' || entry.key, session_id, segment_id, arguments_content, started_ns
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
