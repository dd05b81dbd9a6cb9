-- What was open when a process died: spans that never ended, and tool calls without a result?
--
-- $session_id: only this session, or NULL. $since_ns: only operations that started at or after this time, or NULL. Tool
-- calls are included only if their session crashed and no later request continues the conversation. last_ns is the last
-- activity of the session.
WITH dead AS (
    SELECT session_id, lane, 'span' AS kind, name, label, span_id AS id, started_ns
    FROM spans
    WHERE status IN ('orphan', 'orphaned')
    UNION ALL
    SELECT calls.session_id, calls.lane, 'tool_call' AS kind, calls.name, NULL AS label, calls.tool_use_id AS id, calls.requested_ns
    FROM tool_calls AS calls
    ANTI JOIN attempts AS later
        ON calls.session_id = later.session_id AND later.continues_attempt_id = calls.attempt_id
    WHERE
        calls.result_ns IS NULL
        AND calls.session_id IN (SELECT session_id FROM sessions WHERE status = 'crashed')
), chosen AS (
    SELECT *
    FROM dead
    WHERE
        ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
), known AS (
    SELECT session_id, started_ns + duration_ns AS at_ns FROM attempts
    UNION ALL
    SELECT session_id, result_ns FROM tool_results
    UNION ALL
    SELECT session_id, at_ns FROM events
    UNION ALL
    SELECT session_id, started_ns FROM span_starts
    UNION ALL
    SELECT session_id, ended_ns FROM span_ends WHERE status <> 'orphaned'
    UNION ALL
    SELECT session_id, requested_ns FROM tool_uses
), last AS (
    SELECT session_id, max(at_ns) AS last_ns
    FROM known
    WHERE session_id IN (SELECT session_id FROM chosen)
    GROUP BY session_id
)
SELECT
    chosen.session_id, chosen.lane, kind, name, label, id, started_ns, last_ns,
    greatest(last_ns - started_ns, 0) AS open_ns
FROM chosen
LEFT JOIN last USING (session_id)
ORDER BY started_ns, kind, id;
