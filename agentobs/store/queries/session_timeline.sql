-- What happened in a session, in order: spans, attempts, tool calls and their changes, permission decisions, observed
-- commands, MCP calls and changed files, and external inputs?
--
-- $session_id: the session. depth is 0 for a span without a parent. An attempt, its tool calls and their permission
-- decisions are one level deeper than their span. A sub-agent is one level deeper than the call that started it. The
-- duration of a decision is its approval wait. Commands, MCP calls and changed files follow their tool call, if it is
-- known; a change has the time at which it was found. parent_id is the span that contains a span or an attempt, or NULL.
-- estimated_ns is the duration of a tool call according to the requests, if its run was not recorded.
WITH RECURSIVE known AS (
    SELECT *, coalesce(parent_span_id, linked_span_id) AS under_span_id
    FROM spans
    WHERE session_id = $session_id::VARCHAR
), nested AS (
    SELECT span_id, 0 AS depth
    FROM known
    WHERE under_span_id IS NULL OR under_span_id NOT IN (SELECT span_id FROM known)
    UNION ALL
    -- Spans with cyclic parents are not reached from any root. The limit of 100 ends loops of repeated span IDs.
    -- Attempts and tool calls have rows one level below their span, so agents below these rows are two levels deeper.
    SELECT known.span_id, nested.depth + CASE WHEN known.name IN ('sub_agent', 'interaction') THEN 2 ELSE 1 END
    FROM nested
    JOIN known ON known.under_span_id = nested.span_id
    WHERE nested.depth < 100
), depths AS (
    SELECT span_id, min(depth) AS depth FROM nested GROUP BY span_id
), tried AS (
    SELECT attempts.* EXCLUDE (depth), coalesce(depths.depth + 1, 0) AS depth
    FROM attempts
    LEFT JOIN depths ON attempts.span_id = depths.span_id
    WHERE session_id = $session_id::VARCHAR
), effects AS (
    SELECT
        'command' AS kind, command_id AS id, program AS name, concat_ws(' ', exit_code, signal) AS ending,
        * EXCLUDE (program)
    FROM commands
    WHERE session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT
        'mcp_call' AS kind, call_id AS id, concat_ws(' ', server, coalesce(tool, method)) AS name,
        error_code::VARCHAR AS ending, *
    FROM mcp_calls
    WHERE session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT
        'file_change' AS kind, concat_ws(' ', 'file', state, path) AS id, path AS name, rule AS link_rule,
        at_ns AS started_ns, change AS outcome, '+' || lines_added || ' -' || lines_removed AS ending, lane, turn,
        session_id, attempt_id, ordinal, tool_use_id
    FROM file_changes
    WHERE session_id = $session_id::VARCHAR
), rows AS (
    SELECT
        'span' AS kind, lane, NULL::BIGINT AS turn, known.span_id AS id, name, label, started_ns,
        duration_ns, coalesce(depth, 0) AS depth, status AS outcome, error_type,
        under_span_id AS parent_id
    FROM known
    LEFT JOIN depths ON known.span_id = depths.span_id
    UNION ALL BY NAME
    SELECT
        'attempt' AS kind, lane, turn, attempt_id AS id, endpoint AS name,
        coalesce(model, model_requested) AS label, started_ns, duration_ns, depth, outcome, error_type,
        span_id AS parent_id
    FROM tried
    UNION ALL BY NAME
    SELECT
        'tool_call' AS kind, calls.lane, calls.turn, calls.tool_use_id AS id, calls.name,
        calls.source AS label, coalesce(calls.started_ns, calls.requested_ns) AS started_ns,
        calls.duration_ns, calls.estimated_ns, coalesce(tried.depth, 0) AS depth, calls.outcome, calls.error_code AS error_type
    FROM tool_calls AS calls
    LEFT JOIN tried ON calls.attempt_id = tried.attempt_id
    WHERE calls.session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT
        'permission' AS kind, decided.lane, decided.turn, decided.tool_use_id AS id, decided.tool AS name,
        concat_ws(' ', decided.reason_type, decided.source, nullif(decided.resolver, decided.reason_type)) AS label,
        decided.at_ns - decided.approval_wait_ns AS started_ns,
        CASE WHEN decided.approval_requested THEN decided.approval_wait_ns END AS duration_ns,
        coalesce(tried.depth, 0) AS depth, decided.behavior AS outcome
    FROM permissions AS decided
    LEFT JOIN decided_calls AS results
        ON decided.segment_id = results.segment_id AND decided.sequence = results.sequence
    LEFT JOIN answered_calls AS answered
        ON results.result_segment_id = answered.segment_id AND results.result_sequence = answered.sequence
    LEFT JOIN (
        -- A call without a result is found by its turn.
        SELECT lane, turn, tool_use_id, max(attempt_id) AS attempt_id
        FROM tool_uses
        WHERE session_id = $session_id::VARCHAR
        GROUP BY lane, turn, tool_use_id
    ) AS calls
        ON decided.tool_use_id = calls.tool_use_id AND decided.lane = calls.lane AND decided.turn = calls.turn
    LEFT JOIN tried ON coalesce(answered.attempt_id, calls.attempt_id) = tried.attempt_id
    WHERE decided.session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    -- How calls were handled: changed inputs and results, and tools that became unavailable.
    SELECT
        'event' AS kind, lane, turn, labels['tool_use_id'] AS id, kind AS name,
        CASE kind
            WHEN 'rewritten' THEN concat_ws(' by ', label, labels['by'])
            ELSE concat_ws(' ', labels['service'], label)
        END AS label,
        at_ns AS started_ns, 1 AS depth,
        CASE kind
            WHEN 'rewritten' THEN format('{} -> {} bytes', numbers['before_bytes']::BIGINT, numbers['after_bytes']::BIGINT)
            ELSE format('{} failures', numbers['failures']::BIGINT)
        END AS outcome
    FROM events
    WHERE session_id = $session_id::VARCHAR AND kind IN ('rewritten', 'tool_withdrawn', 'service_breaker')
    UNION ALL BY NAME
    SELECT
        'world' AS kind, lane, turn, key AS id, kind AS name, key AS label, started_ns, duration_ns,
        1 AS depth, answer_bytes || ' bytes' AS outcome
    FROM world_answers
    WHERE session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT
        effects.kind, effects.lane, effects.turn, effects.id, effects.name, effects.link_rule AS label,
        effects.started_ns, effects.duration_ns, coalesce(tried.depth, 0) + 1 AS depth,
        concat_ws(' ', effects.outcome, nullif(effects.ending, '')) AS outcome,
        coalesce(calls.started_ns, calls.requested_ns) AS call_ns, tried.depth AS call_depth,
        effects.tool_use_id AS call_id
    FROM effects
    LEFT JOIN tried ON effects.attempt_id = tried.attempt_id
    LEFT JOIN tool_calls AS calls
        ON effects.session_id = calls.session_id
        AND effects.attempt_id = calls.attempt_id
        AND effects.ordinal = calls.ordinal
)
SELECT * EXCLUDE (call_ns, call_depth, call_id) FROM rows
ORDER BY
    coalesce(call_ns, started_ns), coalesce(call_depth, depth),
    CASE kind WHEN 'span' THEN 0 WHEN 'attempt' THEN 1 WHEN 'permission' THEN 2 ELSE 3 END,
    coalesce(call_id, id), call_id IS NOT NULL, started_ns;
