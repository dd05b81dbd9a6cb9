-- Sessions and their steps, joined from the recorded facts.

-- Whether a status is that of a session that failed, crashed, or has no recorded end.
CREATE OR REPLACE MACRO is_failure(status) AS status IN ('failed', 'crashed', 'incomplete');

-- Whether a tool call of a session failed or was denied. The calls are those of `internal/failed_calls`.
CREATE OR REPLACE MACRO has_failed_calls(of_session) AS of_session IN (
    SELECT session_id FROM tool_results WHERE is_error OR outcome IN ('denied', 'blocked')
    UNION ALL
    SELECT session_id FROM provider_tool_results WHERE is_error
);

-- How much a session needs attention: 2 if tool calls failed or were denied, 1 if failure signatures were found, 0 if
-- neither. If it failed, a larger number that grows with the day of its start. The money that sessions of equal numbers
-- lost decides next; if it is unknown, a failed session comes first, and any other session last.
CREATE OR REPLACE MACRO attention(status, failed_calls, signatures, started_ns) AS CASE
    WHEN is_failure(status) THEN 3 + started_ns // 86400000000000
    WHEN failed_calls THEN 2
    WHEN signatures > 0 THEN 1
    ELSE 0
END;
CREATE OR REPLACE MACRO attention_money(status, cost_usd) AS
    CASE WHEN is_failure(status) THEN coalesce(cost_usd, 1e20::DECIMAL(38, 12)) ELSE cost_usd END;

CREATE OR REPLACE VIEW turns AS
WITH complete AS (
    SELECT * FROM attempts WHERE makes_turns AND outcome = 'ok' AND query_source IN ('main', 'sub_agent')
), marks AS (
    SELECT session_id, lane, turn, kind, session_sequence
    FROM events
    WHERE kind = 'tombstone' OR (kind = 'continuation' AND label = 'void')
), tombstones AS (
    SELECT marks.session_id, complete.attempt_id, marks.lane, marks.turn, complete.session_sequence
    FROM marks
    ASOF JOIN complete
        ON marks.session_id = complete.session_id AND marks.lane = complete.lane AND marks.turn = complete.turn
        AND marks.session_sequence > complete.session_sequence
    WHERE marks.kind = 'tombstone'
), discarded AS (
    -- The agent loop discards a response that it requests again, or that filled the window of the model. If the repeated
    -- request fails, the first response is used after all.
    SELECT tombstones.session_id, tombstones.attempt_id
    FROM tombstones
    LEFT JOIN complete AS later
        ON tombstones.session_id = later.session_id AND tombstones.lane = later.lane AND tombstones.turn = later.turn
        AND tombstones.session_sequence < later.session_sequence
    LEFT JOIN marks AS void
        ON tombstones.session_id = void.session_id AND tombstones.lane = void.lane AND tombstones.turn = void.turn
        AND void.kind = 'continuation' AND tombstones.session_sequence < void.session_sequence
    WHERE later.attempt_id IS NOT NULL OR void.session_id IS NULL
)
SELECT
    complete.session_id,
    complete.interaction_id,
    complete.lane,
    complete.turn,
    complete.llm_request_id,
    complete.attempt_id,
    complete.attempt,
    complete.started_ns,
    make_timestamp_ns(complete.started_ns) AS started_at,
    complete.duration_ns,
    complete.first_chunk_ns,
    complete.model,
    complete.stop_reason,
    complete.tool_use_count,
    complete.message_count,
    complete.origin
FROM complete
ANTI JOIN discarded ON complete.session_id = discarded.session_id AND complete.attempt_id = discarded.attempt_id;
COMMENT ON VIEW turns IS 'One row for each turn: a complete response of a model to the main agent or a sub-agent that became a part of the conversation. Responses to auxiliary requests (summaries, hooks, classifiers, side requests) and responses that the agent loop discarded are not turns.';
COMMENT ON COLUMN turns.session_id IS 'The ID of the session.';
COMMENT ON COLUMN turns.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN turns.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN turns.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN turns.llm_request_id IS 'The ID of the LLM request.';
COMMENT ON COLUMN turns.attempt_id IS 'The ID of the attempt that succeeded.';
COMMENT ON COLUMN turns.attempt IS 'The number of the attempt within the LLM request, from 1.';
COMMENT ON COLUMN turns.started_ns IS 'When the attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN turns.started_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN turns.duration_ns IS 'Duration of the attempt. [ns]';
COMMENT ON COLUMN turns.first_chunk_ns IS 'When the first chunk of the response arrived. [ns after started_ns]';
COMMENT ON COLUMN turns.model IS 'The model in the response.';
COMMENT ON COLUMN turns.stop_reason IS 'Why the model stopped, or NULL.';
COMMENT ON COLUMN turns.tool_use_count IS 'The number of tool calls in the response.';
COMMENT ON COLUMN turns.message_count IS 'The number of messages in the request.';
COMMENT ON COLUMN turns.origin IS '`live` (sent to the provider), `replayed` (answered from a recording by a fork, at no cost), or `managed` (sent by the provider for a managed agent).';

CREATE OR REPLACE VIEW turn_counts AS
SELECT session_id, lane, count(*) AS turns, sum(tool_use_count)::BIGINT AS tool_calls
FROM turns
GROUP BY session_id, lane;
COMMENT ON VIEW turn_counts IS 'One row for each session and lane: the numbers of turns and tool calls, which all commands, pages and results of the agent loop show.';
COMMENT ON COLUMN turn_counts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN turn_counts.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN turn_counts.turns IS 'The number of turns, as in turns.';
COMMENT ON COLUMN turn_counts.tool_calls IS 'The number of tool calls in these turns. Calls in responses that broke off or were discarded, and calls of tools that the provider ran, do not count; the view tool_calls contains them.';

CREATE OR REPLACE VIEW llm_requests AS
SELECT
    session_id,
    llm_request_id,
    arg_max(interaction_id, attempt) AS interaction_id,
    arg_max(lane, attempt) AS lane,
    arg_max(turn, attempt) AS turn,
    arg_max(endpoint, attempt) AS endpoint,
    arg_max(model_requested, attempt) AS model_requested,
    arg_max_null(model, attempt) AS model,
    count(*) AS attempts,
    arg_max(outcome, attempt) AS outcome,
    arg_max_null(status, attempt) AS status,
    arg_max_null(error_type, attempt) AS error_type,
    min(started_ns) AS started_ns,
    make_timestamp_ns(min(started_ns)) AS started_at,
    max(started_ns + duration_ns) - min(started_ns) AS duration_ns,
    arg_max(origin, attempt) AS origin
FROM attempts
GROUP BY session_id, llm_request_id;
COMMENT ON VIEW llm_requests IS 'One row for each LLM request, including its retries.';
COMMENT ON COLUMN llm_requests.session_id IS 'The ID of the session.';
COMMENT ON COLUMN llm_requests.llm_request_id IS 'The ID of the LLM request.';
COMMENT ON COLUMN llm_requests.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN llm_requests.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN llm_requests.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN llm_requests.endpoint IS 'The path of the request; each ID in the path is replaced by `:id`.';
COMMENT ON COLUMN llm_requests.model_requested IS 'The model in the request, or NULL.';
COMMENT ON COLUMN llm_requests.model IS 'The model in the last response, or NULL.';
COMMENT ON COLUMN llm_requests.attempts IS 'The number of attempts.';
COMMENT ON COLUMN llm_requests.outcome IS 'The outcome of the last attempt.';
COMMENT ON COLUMN llm_requests.status IS 'The HTTP status of the last attempt, or NULL.';
COMMENT ON COLUMN llm_requests.error_type IS 'The error type of the last attempt, or NULL.';
COMMENT ON COLUMN llm_requests.started_ns IS 'When the first attempt was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN llm_requests.started_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN llm_requests.duration_ns IS 'Time from the first attempt to the end of the last attempt, including waits between attempts. [ns]';
COMMENT ON COLUMN llm_requests.origin IS 'The origin of the last attempt: `live` (sent to the provider), `replayed` (answered from a recording by a fork, at no cost), or `managed` (sent by the provider for a managed agent).';

CREATE OR REPLACE VIEW tool_calls AS
SELECT
    u.session_id,
    u.interaction_id,
    u.lane,
    u.turn,
    u.attempt_id,
    u.tool_use_id,
    u.name,
    u.ordinal,
    u.requested_ns,
    make_timestamp_ns(u.requested_ns) AS requested_at,
    r.started_ns,
    r.duration_ns,
    CASE WHEN r.source = 'wire' AND r.duration_ns IS NULL THEN r.result_ns - u.requested_ns END AS estimated_ns,
    r.result_ns,
    r.source,
    r.outcome,
    r.is_error,
    r.attempts,
    coalesce(p.behavior, w.behavior) AS permission,
    coalesce(p.approval_wait_ns, w.approval_wait_ns) AS approval_wait_ns,
    u.input_bytes,
    r.result_bytes,
    'client' AS runs_on,
    NULL::VARCHAR AS server,
    NULL::VARCHAR AS error_code,
    NULL::BIGINT AS use,
    NULL::BIGINT AS max_uses,
    NULL::VARCHAR AS caller_id,
    NULL::VARCHAR AS result_attempt_id,
    NULL::VARCHAR AS batch_result_id
FROM tool_uses AS u
LEFT JOIN answered_calls AS a
    ON u.session_id = a.session_id AND u.attempt_id = a.attempt_id AND u.ordinal = a.ordinal
LEFT JOIN tool_results AS r ON a.segment_id = r.segment_id AND a.sequence = r.sequence
LEFT JOIN (
    SELECT
        d.result_segment_id, d.result_sequence, arg_max(behavior, at_ns) AS behavior,
        sum(approval_wait_ns)::BIGINT AS approval_wait_ns
    FROM decided_calls AS d
    JOIN permissions ON d.segment_id = permissions.segment_id AND d.sequence = permissions.sequence
    GROUP BY d.result_segment_id, d.result_sequence
) AS p ON r.segment_id = p.result_segment_id AND r.sequence = p.result_sequence
LEFT JOIN (
    -- The decisions about calls without a result.
    SELECT
        session_id, lane, turn, tool_use_id, arg_max(behavior, at_ns) AS behavior,
        sum(approval_wait_ns)::BIGINT AS approval_wait_ns
    FROM permissions
    ANTI JOIN decided_calls AS d ON d.segment_id = permissions.segment_id AND d.sequence = permissions.sequence
    GROUP BY session_id, lane, turn, tool_use_id
) AS w
    ON a.session_id IS NULL AND u.session_id = w.session_id AND u.tool_use_id = w.tool_use_id
    AND u.lane = w.lane AND u.turn IS NOT DISTINCT FROM w.turn
UNION ALL
SELECT
    u.session_id, u.interaction_id, u.lane, u.turn, u.attempt_id, u.tool_use_id, u.name, u.ordinal, u.requested_ns,
    make_timestamp_ns(u.requested_ns) AS requested_at,
    CASE WHEN u.is_timed THEN u.requested_ns END AS started_ns,
    r.duration_ns, NULL::BIGINT AS estimated_ns, r.result_ns,
    CASE WHEN r.session_id IS NOT NULL THEN 'response' END AS source,
    r.outcome, r.is_error,
    CASE WHEN r.session_id IS NOT NULL THEN 1 END AS attempts,
    NULL AS permission, NULL AS approval_wait_ns, u.input_bytes, r.result_bytes,
    CASE WHEN r.by_client THEN 'client' ELSE 'provider' END AS runs_on, u.server, r.error_code, u.use, u.max_uses, u.caller_id, r.result_attempt_id,
    u.batch_result_id
FROM provider_tool_uses AS u
LEFT JOIN (
    FROM provider_tool_results
    WHERE attempt_id IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY session_id, attempt_id, ordinal ORDER BY result_ns, segment_id, sequence
    ) = 1
) AS r ON u.session_id = r.session_id AND u.attempt_id = r.attempt_id AND u.ordinal = r.ordinal;
COMMENT ON VIEW tool_calls IS 'One row for each tool call, with its result if there is one.';
COMMENT ON COLUMN tool_calls.session_id IS 'The ID of the session.';
COMMENT ON COLUMN tool_calls.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN tool_calls.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN tool_calls.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN tool_calls.attempt_id IS 'The attempt whose response contains the call.';
COMMENT ON COLUMN tool_calls.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN tool_calls.name IS 'The name of the tool.';
COMMENT ON COLUMN tool_calls.ordinal IS 'The position of the call in the response, from 1. Calls that the provider ran are counted separately.';
COMMENT ON COLUMN tool_calls.requested_ns IS 'When the response that contains the call ended; in a stream, when a call that the provider ran appeared. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_calls.requested_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN tool_calls.started_ns IS 'When the tool started; NULL if unknown. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_calls.duration_ns IS 'How long the tool ran; NULL if unknown. For a tool of the provider, the time from its call to its result in the stream. [ns]';
COMMENT ON COLUMN tool_calls.estimated_ns IS 'For a result that was derived from a request, whose tool has no recorded duration: the time from the response with the call to this request, including any approval wait; otherwise NULL. [ns]';
COMMENT ON COLUMN tool_calls.result_ns IS 'When the result was available, or when the request that contains it was sent; NULL without a result. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_calls.source IS '`run`: the agentobs loop ran the tool; `wire`: the result was derived from a request; `response`: the provider ran the tool, and a response contains the result; NULL without a result.';
COMMENT ON COLUMN tool_calls.outcome IS 'The outcome, as in tool_results: `executed`, `failed`, `denied` and others; NULL without a result.';
COMMENT ON COLUMN tool_calls.is_error IS 'Whether the model got the result as an error; NULL without a result.';
COMMENT ON COLUMN tool_calls.attempts IS 'The number of executions, including retries; NULL without a result.';
COMMENT ON COLUMN tool_calls.permission IS 'The permission decision: `allow` or `deny`; NULL if there was no decision.';
COMMENT ON COLUMN tool_calls.approval_wait_ns IS 'The duration of the approval wait; NULL if there was no permission decision. [ns]';
COMMENT ON COLUMN tool_calls.input_bytes IS 'Size of the input of the call. [bytes]';
COMMENT ON COLUMN tool_calls.result_bytes IS 'Size of the result; NULL without a result. [bytes]';
COMMENT ON COLUMN tool_calls.runs_on IS 'Where the tool ran: `client` or `provider`.';
COMMENT ON COLUMN tool_calls.server IS 'The MCP server that has the tool, if the provider calls it; otherwise NULL.';
COMMENT ON COLUMN tool_calls.error_code IS 'The provider''s reason for the error of a tool that it ran, such as `max_uses_exceeded`; otherwise NULL.';
COMMENT ON COLUMN tool_calls.use IS 'How many times the response has called this tool of the provider, including this call; NULL for other tools.';
COMMENT ON COLUMN tool_calls.max_uses IS 'The maximum of `use` that the request declares; NULL without a limit.';
COMMENT ON COLUMN tool_calls.caller_id IS 'The ID of the call of the provider, such as a code execution, that made this call; NULL if the model made it.';
COMMENT ON COLUMN tool_calls.result_attempt_id IS 'The attempt whose response contains the result of a tool of the provider. It differs from attempt_id if the provider paused the turn.';
COMMENT ON COLUMN tool_calls.batch_result_id IS 'The keyed digest of the result of a batch that contains the call, as in usage; NULL for other calls.';

CREATE OR REPLACE VIEW advisor_consultations AS
SELECT
    u.session_id,
    u.interaction_id,
    u.lane,
    u.turn,
    u.attempt_id,
    u.tool_use_id,
    u.use,
    u.max_uses,
    u.max_result_tokens,
    r.duration_ns,
    r.outcome,
    r.error_code,
    r.stop_reason,
    advisor.model AS advisor_model,
    advisor.input_tokens::HUGEINT + advisor.cache_read_tokens + advisor.cache_write_5m_tokens
        + advisor.cache_write_1h_tokens AS advisor_input_tokens,
    advisor.output_tokens AS advisor_output_tokens,
    executor.model AS executor_model,
    executor.input_tokens AS executor_input_tokens,
    executor.output_tokens AS executor_output_tokens
FROM provider_tool_uses AS u
LEFT JOIN provider_tool_results AS r
    ON u.session_id = r.session_id AND u.attempt_id = r.attempt_id AND u.ordinal = r.ordinal
LEFT JOIN usage AS advisor
    ON r.session_id = advisor.session_id AND r.result_attempt_id = advisor.attempt_id
    AND r.iteration = advisor.iteration
    AND (r.batch_result_id IS NULL OR r.batch_result_id = advisor.batch_result_id)
LEFT JOIN (
    SELECT
        session_id, attempt_id, batch_result_id, any_value(model) AS model,
        sum(input_tokens::HUGEINT + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens
    FROM usage
    WHERE billed AND kind <> 'advisor_message'
    GROUP BY session_id, attempt_id, batch_result_id
) AS executor
    ON u.session_id = executor.session_id AND u.attempt_id = executor.attempt_id
    AND (u.batch_result_id IS NULL OR u.batch_result_id = executor.batch_result_id)
WHERE u.name = 'advisor';
COMMENT ON VIEW advisor_consultations IS 'One row for each time that a model consulted its advisor, with the tokens of both.';
COMMENT ON COLUMN advisor_consultations.session_id IS 'The ID of the session.';
COMMENT ON COLUMN advisor_consultations.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN advisor_consultations.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN advisor_consultations.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN advisor_consultations.attempt_id IS 'The attempt whose response contains the consultation.';
COMMENT ON COLUMN advisor_consultations.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN advisor_consultations.use IS 'The number of the consultation in the response, from 1.';
COMMENT ON COLUMN advisor_consultations.max_uses IS 'The maximum number of consultations that the request declares; NULL without a limit.';
COMMENT ON COLUMN advisor_consultations.max_result_tokens IS 'The maximum output of one consultation that the request declares; NULL without a limit. [tokens]';
COMMENT ON COLUMN advisor_consultations.duration_ns IS 'Time from the call to its result in the stream; NULL if unknown. [ns]';
COMMENT ON COLUMN advisor_consultations.outcome IS '`executed` or `failed`; NULL without a result.';
COMMENT ON COLUMN advisor_consultations.error_code IS 'The provider''s reason for the error, such as `max_uses_exceeded`; NULL if there is none.';
COMMENT ON COLUMN advisor_consultations.stop_reason IS 'Why the advisor stopped; `max_tokens` if its output was cut; NULL if unknown.';
COMMENT ON COLUMN advisor_consultations.advisor_model IS 'The model of the advisor; NULL if its usage is unknown.';
COMMENT ON COLUMN advisor_consultations.advisor_input_tokens IS 'Input of the advisor, cached or not; NULL if unknown. [tokens]';
COMMENT ON COLUMN advisor_consultations.advisor_output_tokens IS 'Output of the advisor; NULL if unknown. [tokens]';
COMMENT ON COLUMN advisor_consultations.executor_model IS 'The model that consulted the advisor; NULL if its usage is unknown.';
COMMENT ON COLUMN advisor_consultations.executor_input_tokens IS 'Input of that model in the complete response, cached or not. [tokens]';
COMMENT ON COLUMN advisor_consultations.executor_output_tokens IS 'Output of that model in the complete response. [tokens]';

CREATE OR REPLACE VIEW interactions AS
SELECT
    s.session_id,
    s.interaction_id,
    s.lane,
    s.started_ns,
    make_timestamp_ns(s.started_ns) AS started_at,
    e.ended_ns,
    e.ended_ns - s.started_ns AS duration_ns,
    e.result,
    e.is_error
FROM interaction_starts AS s
LEFT JOIN interaction_ends AS e ON s.session_id = e.session_id AND s.interaction_id = e.interaction_id;
COMMENT ON VIEW interactions IS 'One row for each interaction, which is everything from one user prompt to its final response.';
COMMENT ON COLUMN interactions.session_id IS 'The ID of the session.';
COMMENT ON COLUMN interactions.interaction_id IS 'The ID of the interaction.';
COMMENT ON COLUMN interactions.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN interactions.started_ns IS 'When the prompt was received. [ns since 1970 UTC]';
COMMENT ON COLUMN interactions.started_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN interactions.ended_ns IS 'When the interaction ended; NULL if it has not ended. [ns since 1970 UTC]';
COMMENT ON COLUMN interactions.duration_ns IS 'Duration of the interaction; NULL if it has not ended. [ns]';
COMMENT ON COLUMN interactions.result IS 'How the interaction ended, such as `success`; NULL if it has not ended.';
COMMENT ON COLUMN interactions.is_error IS 'Whether the result is an error; NULL if the interaction has not ended.';

CREATE OR REPLACE VIEW spans AS
WITH ended AS (
    SELECT * FROM span_ends WHERE late IS NOT TRUE
), corrected AS (
    -- The real ends of spans that had been ended as orphaned before.
    SELECT * FROM span_ends WHERE late
), lost AS (
    SELECT DISTINCT s.session_id
    FROM span_starts AS s
    ANTI JOIN span_ends AS e ON s.session_id = e.session_id AND s.span_id = e.span_id
    LEFT JOIN segments AS g ON s.segment_id = g.segment_id
    WHERE g.state IS DISTINCT FROM 'open'
), seen AS (
    SELECT session_id, started_ns AS at_ns FROM span_starts SEMI JOIN lost USING (session_id)
    UNION ALL
    SELECT session_id, ended_ns FROM span_ends SEMI JOIN lost USING (session_id)
    UNION ALL
    SELECT session_id, started_ns + duration_ns FROM attempts SEMI JOIN lost USING (session_id)
    UNION ALL
    SELECT session_id, result_ns FROM tool_results SEMI JOIN lost USING (session_id)
    UNION ALL
    SELECT session_id, at_ns FROM events SEMI JOIN lost USING (session_id)
), last_seen AS (
    SELECT session_id, max(at_ns) AS at_ns FROM seen GROUP BY session_id
), known AS (
    SELECT
        s.*,
        CASE
            WHEN l.span_id IS NOT NULL THEN l.status
            WHEN e.span_id IS NOT NULL THEN e.status
            WHEN g.state = 'open' THEN 'open'
            ELSE 'orphaned'
        END AS status,
        coalesce(l.ended_ns, e.ended_ns) AS end_ns,
        coalesce(e.last_activity_ns, last_seen.at_ns) AS seen_ns,
        coalesce(l.error_type, e.error_type) AS error_type,
        l.span_id IS NOT NULL AS late
    FROM span_starts AS s
    LEFT JOIN ended AS e ON s.session_id = e.session_id AND s.span_id = e.span_id
    LEFT JOIN corrected AS l ON s.session_id = l.session_id AND s.span_id = l.span_id
    LEFT JOIN segments AS g ON s.segment_id = g.segment_id
    LEFT JOIN last_seen ON s.session_id = last_seen.session_id
)
SELECT
    session_id,
    trace_id,
    span_id,
    parent_span_id,
    linked_span_id,
    remote_parent,
    lane,
    name,
    label,
    numbers,
    labels,
    started_ns,
    make_timestamp_ns(started_ns) AS started_at,
    CASE WHEN status = 'orphaned' THEN coalesce(end_ns, seen_ns) ELSE end_ns END AS ended_ns,
    CASE WHEN status <> 'orphaned' THEN end_ns - started_ns END AS duration_ns,
    status,
    error_type,
    CASE WHEN status = 'orphaned' THEN seen_ns END AS last_activity_ns,
    late
FROM known;
COMMENT ON VIEW spans IS 'One row for each span, whether it has ended or not.';
COMMENT ON COLUMN spans.session_id IS 'The ID of the session.';
COMMENT ON COLUMN spans.trace_id IS 'The ID of the interaction, or of the session outside of an interaction; a separate ID if the span outlives the span that started it.';
COMMENT ON COLUMN spans.span_id IS 'The ID of the span.';
COMMENT ON COLUMN spans.parent_span_id IS 'The span in which this span was opened, or NULL.';
COMMENT ON COLUMN spans.linked_span_id IS 'The span that started this one, if it had already ended or is expected to end before this one; else NULL.';
COMMENT ON COLUMN spans.remote_parent IS 'The W3C `traceparent` with which another program started this session; NULL if there was none, and for spans with a parent.';
COMMENT ON COLUMN spans.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN spans.name IS 'The kind of operation, such as `llm_request`.';
COMMENT ON COLUMN spans.label IS 'The subject, such as the model or the tool, or NULL.';
COMMENT ON COLUMN spans.numbers IS 'Numbers set by the author, by name; NULL if there are none.';
COMMENT ON COLUMN spans.labels IS 'Labels set by the author, by name; NULL if there are none.';
COMMENT ON COLUMN spans.started_ns IS 'When the span started. [ns since 1970 UTC]';
COMMENT ON COLUMN spans.started_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN spans.ended_ns IS 'When the span ended. For an orphaned span, when agentobs ended it, or the last activity of its session if the process died. NULL if the span is open. [ns since 1970 UTC]';
COMMENT ON COLUMN spans.duration_ns IS 'Duration of the span; NULL if it is open or orphaned. [ns]';
COMMENT ON COLUMN spans.status IS '`ok`, `error` or `cancelled`; `open`: it may still end; `orphaned`: the program did not end it.';
COMMENT ON COLUMN spans.error_type IS 'The class of the error, or the provider''s error type; NULL without an error.';
COMMENT ON COLUMN spans.last_activity_ns IS 'For an orphaned span, the time of the last known activity of the span, or of its session if the process died; else NULL. [ns since 1970 UTC]';
COMMENT ON COLUMN spans.late IS 'Whether the span was ended as orphaned before its real end.';

CREATE OR REPLACE VIEW span_health AS
SELECT
    session_id,
    count(*) AS spans,
    count(*) FILTER (WHERE status = 'open') AS open_spans,
    count(*) FILTER (WHERE status = 'orphaned') AS orphaned_spans,
    count(*) FILTER (WHERE late) AS late_spans
FROM spans
GROUP BY session_id;
COMMENT ON VIEW span_health IS 'One row for each session with spans: how many of its spans have ended properly.';
COMMENT ON COLUMN span_health.session_id IS 'The ID of the session.';
COMMENT ON COLUMN span_health.spans IS 'The number of spans.';
COMMENT ON COLUMN span_health.open_spans IS 'The number of spans that may still end.';
COMMENT ON COLUMN span_health.orphaned_spans IS 'The number of spans that were not ended, because the program did not end them or the process died.';
COMMENT ON COLUMN span_health.late_spans IS 'The number of spans that ended after they had been marked as orphaned.';

CREATE OR REPLACE VIEW continuations AS
SELECT
    session_id,
    arg_min(continues_session_id, at_ns) AS continues_session_id,
    arg_min(relation, at_ns) AS relation
FROM (
    SELECT session_id, continues_session_id, relation, started_ns AS at_ns
    FROM session_starts
    WHERE continues_session_id IS NOT NULL
    UNION ALL
    -- If the relation is not recorded at the start, it is recorded when the earlier conversation is read.
    SELECT session_id, label, CASE kind WHEN 'resumed' THEN 'resume' ELSE 'fork' END, at_ns
    FROM events
    WHERE kind IN ('resumed', 'forked') AND label IS NOT NULL
)
WHERE continues_session_id <> session_id
GROUP BY session_id;
COMMENT ON VIEW continuations IS 'One row for each session that resumes or forks an earlier session.';
COMMENT ON COLUMN continuations.session_id IS 'The ID of the session.';
COMMENT ON COLUMN continuations.continues_session_id IS 'The ID of the earlier session; it may be in another home.';
COMMENT ON COLUMN continuations.relation IS '`resume`: the session continues the same conversation; `fork`: it is a new conversation that starts like the earlier one.';

CREATE OR REPLACE VIEW conversation_parts AS
WITH RECURSIVE resumed AS (
    SELECT session_id, continues_session_id FROM continuations WHERE relation = 'resume'
), parts AS (
    SELECT continues_session_id AS session_id, continues_session_id AS conversation_id
    FROM resumed
    WHERE continues_session_id NOT IN (SELECT session_id FROM resumed)
    UNION
    SELECT resumed.session_id, parts.conversation_id
    FROM resumed
    JOIN parts ON resumed.continues_session_id = parts.session_id
)
SELECT session_id, conversation_id FROM parts;
COMMENT ON VIEW conversation_parts IS 'One row for each session of a resumed conversation. A conversation that was never resumed has no rows.';
COMMENT ON COLUMN conversation_parts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN conversation_parts.conversation_id IS 'The ID of the first session of the conversation. A fork starts a new conversation.';

CREATE OR REPLACE VIEW sessions AS
WITH ids AS (
    -- Include sessions whose start is missing because of damage.
    SELECT session_id FROM session_starts
    UNION
    SELECT session_id FROM attempts
), started AS (
    SELECT
        session_id,
        arg_min({'name': name, 'entry': entry, 'tags': tags, 'forked_turn': forked_turn}, started_ns) AS first,
        min(started_ns) AS started_ns,
        -- Only for sessions with several starts. Otherwise, a jump of the clock could place the end before the start.
        CASE WHEN count(*) > 1 THEN max(started_ns) END AS resumed_ns
    FROM session_starts
    GROUP BY session_id
), ended AS (
    SELECT
        session_id,
        arg_max({'outcome': outcome, 'reason': reason, 'signature': signature}, ended_ns) AS last,
        max(ended_ns) AS ended_ns,
        sum(dropped) AS dropped
    FROM session_ends
    GROUP BY session_id
), requests AS (
    SELECT
        session_id,
        count(*) AS attempts,
        count(*) FILTER (WHERE attempt = 1) AS llm_requests,
        count(*) FILTER (WHERE attempt = 1 AND origin = 'replayed') AS replayed_requests,
        min(started_ns) AS first_ns
    FROM attempts
    GROUP BY session_id
), spent AS (
    SELECT
        session_id,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        sum(cache_write_tokens) AS cache_write_tokens,
        sum(cost_usd) AS cost_usd,
        count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls
    FROM costs
    GROUP BY session_id
), prompted AS (
    SELECT session_id, count(*) AS interactions FROM interaction_starts GROUP BY session_id
), counted AS (
    SELECT session_id, sum(turns)::BIGINT AS turns, sum(tool_calls)::BIGINT AS tool_calls
    FROM turn_counts
    GROUP BY session_id
), activity AS (
    SELECT session_id, max(started_ns + duration_ns) AS at_ns FROM attempts GROUP BY session_id
    UNION ALL SELECT session_id, max(result_ns) FROM tool_results GROUP BY session_id
    -- Telemetry has the times of the client, which can be wrong.
    UNION ALL SELECT session_id, max(at_ns) FROM events WHERE kind <> 'telemetry' GROUP BY session_id
    UNION ALL SELECT session_id, max(started_ns) FROM span_starts GROUP BY session_id
    UNION ALL SELECT session_id, max(ended_ns) FROM span_ends GROUP BY session_id
    UNION ALL SELECT session_id, max(started_ns + duration_ns) FROM world_answers GROUP BY session_id
), active AS (
    SELECT session_id, max(at_ns) AS at_ns FROM activity GROUP BY session_id
), open_segments AS (
    SELECT segment_id FROM segments WHERE state = 'open'
), running AS (
    SELECT session_id FROM session_starts WHERE segment_id IN (FROM open_segments)
    UNION
    SELECT session_id FROM attempts WHERE segment_id IN (FROM open_segments)
    UNION
    SELECT session_id FROM span_starts WHERE segment_id IN (FROM open_segments)
    UNION
    SELECT session_id FROM tool_results WHERE segment_id IN (FROM open_segments)
), missing AS (
    SELECT
        session_id,
        sum(records) AS dropped,
        -- The record of the end was lost, so the session ended with an unknown outcome.
        max(at_ns) FILTER (WHERE kind = 'session_ends') AS end_lost_ns
    FROM gaps
    GROUP BY session_id
), damaged_segments AS (
    SELECT segment_id FROM segments WHERE damaged_records > 0 OR missing_records > 0
), damaged AS (
    SELECT session_id FROM session_starts WHERE segment_id IN (FROM damaged_segments)
    UNION
    SELECT session_id FROM attempts WHERE segment_id IN (FROM damaged_segments)
    UNION
    SELECT session_id FROM session_ends WHERE segment_id IN (FROM damaged_segments)
), joined AS (
    SELECT
        ids.session_id,
        started.first,
        coalesce(started.started_ns, requests.first_ns) AS started_ns,
        -- If the session was started again, an end before the last start belongs to an earlier start.
        coalesce(ended.ended_ns >= coalesce(started.resumed_ns, 0), false) AS has_ended,
        ended.ended_ns,
        active.at_ns AS active_ns,
        started.resumed_ns,
        ended.last,
        -- Only `gaps` contains records that were dropped after the end of the session.
        greatest(coalesce(ended.dropped, 0), coalesce(missing.dropped, 0)) AS dropped,
        coalesce(missing.end_lost_ns >= coalesce(started.resumed_ns, 0), false) AS is_end_lost,
        running.session_id IS NOT NULL AS is_running,
        damaged.session_id IS NOT NULL AS is_damaged,
        requests.attempts,
        requests.llm_requests,
        counted.turns,
        requests.replayed_requests,
        prompted.interactions,
        counted.tool_calls,
        coalesce(parts.conversation_id, ids.session_id) AS conversation_id,
        continuations.continues_session_id,
        continuations.relation,
        spent.* EXCLUDE (session_id)
    FROM ids
    LEFT JOIN started ON ids.session_id = started.session_id
    LEFT JOIN ended ON ids.session_id = ended.session_id
    LEFT JOIN active ON ids.session_id = active.session_id
    LEFT JOIN requests ON ids.session_id = requests.session_id
    LEFT JOIN spent ON ids.session_id = spent.session_id
    LEFT JOIN prompted ON ids.session_id = prompted.session_id
    LEFT JOIN counted ON ids.session_id = counted.session_id
    LEFT JOIN running ON ids.session_id = running.session_id
    LEFT JOIN damaged ON ids.session_id = damaged.session_id
    LEFT JOIN missing ON ids.session_id = missing.session_id
    LEFT JOIN conversation_parts AS parts ON ids.session_id = parts.session_id
    LEFT JOIN continuations ON ids.session_id = continuations.session_id
)
SELECT
    session_id,
    first.name AS name,
    CASE
        WHEN has_ended THEN last.outcome
        WHEN is_end_lost THEN 'incomplete'
        WHEN is_running THEN 'running'
        ELSE 'crashed'
    END AS status,
    CASE WHEN has_ended THEN last.reason END AS reason,
    CASE WHEN has_ended THEN last.signature END AS signature,
    started_ns,
    make_timestamp_ns(started_ns) AS started_at,
    CASE WHEN has_ended THEN ended_ns END AS ended_ns,
    CASE WHEN has_ended THEN ended_ns - started_ns END AS duration_ns,
    greatest(started_ns, resumed_ns, ended_ns, active_ns) AS last_activity_ns,
    first.entry AS entry,
    first.tags AS tags,
    coalesce(interactions, 0) AS interactions,
    coalesce(turns, 0) AS turns,
    coalesce(llm_requests, 0) AS llm_requests,
    coalesce(attempts, 0) AS attempts,
    coalesce(tool_calls, 0) AS tool_calls,
    coalesce(input_tokens, 0) AS input_tokens,
    coalesce(output_tokens, 0) AS output_tokens,
    coalesce(cache_read_tokens, 0) AS cache_read_tokens,
    coalesce(cache_write_tokens, 0) AS cache_write_tokens,
    cost_usd,
    coalesce(unpriced_calls, 0) AS unpriced_calls,
    dropped,
    dropped > 0 OR is_damaged AS incomplete,
    conversation_id,
    continues_session_id,
    -- A fork of a fixture has no relation if the fixture does not contain the session ID.
    coalesce(relation, CASE WHEN first.forked_turn IS NOT NULL THEN 'fork' END) AS relation,
    first.forked_turn AS forked_turn,
    coalesce(replayed_requests, 0) AS replayed_requests,
    attempts IS NULL AND coalesce(first.tags['telemetry_session'] IS NOT NULL, false) AS is_telemetry
FROM joined;
COMMENT ON VIEW sessions IS 'One row for each session.';
COMMENT ON COLUMN sessions.session_id IS 'The ID of the session.';
COMMENT ON COLUMN sessions.name IS 'The name given by the author; a keyed digest if it is not a label.';
COMMENT ON COLUMN sessions.status IS '`completed`; `failed`; `interrupted`: by Ctrl-C or cancellation; `incomplete`: the session ended, but its end could not be written, see `gaps`; `running`: the session may still end; `crashed`: the session did not end, and no process is left that could end it.';
COMMENT ON COLUMN sessions.reason IS 'Why the session failed, or NULL.';
COMMENT ON COLUMN sessions.signature IS 'Identifies the kind of failure, or NULL.';
COMMENT ON COLUMN sessions.started_ns IS 'When the session started. [ns since 1970 UTC]';
COMMENT ON COLUMN sessions.started_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN sessions.ended_ns IS 'When the session ended; NULL if it has not ended. [ns since 1970 UTC]';
COMMENT ON COLUMN sessions.duration_ns IS 'Duration of the session; NULL if it has not ended. [ns]';
COMMENT ON COLUMN sessions.last_activity_ns IS 'The last known activity of the session: its start, its end, or any record in between. [ns since 1970 UTC]';
COMMENT ON COLUMN sessions.entry IS 'The function that started the session, as `module:name`, or NULL.';
COMMENT ON COLUMN sessions.tags IS 'Labels set by the author.';
COMMENT ON COLUMN sessions.interactions IS 'The number of interactions.';
COMMENT ON COLUMN sessions.turns IS 'The number of turns of all lanes, as in turn_counts.';
COMMENT ON COLUMN sessions.llm_requests IS 'The number of LLM requests.';
COMMENT ON COLUMN sessions.attempts IS 'The number of attempts, which are HTTP requests to the provider.';
COMMENT ON COLUMN sessions.tool_calls IS 'The number of tool calls in these turns, as in turn_counts, without the calls of tools that the provider ran.';
COMMENT ON COLUMN sessions.input_tokens IS 'Billed input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN sessions.output_tokens IS 'Billed output tokens. [tokens]';
COMMENT ON COLUMN sessions.cache_read_tokens IS 'Billed input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN sessions.cache_write_tokens IS 'Billed input tokens that were written to the cache. [tokens]';
COMMENT ON COLUMN sessions.cost_usd IS 'The cost of the calls that have a price; NULL if no call has a price. [USD]';
COMMENT ON COLUMN sessions.unpriced_calls IS 'The number of billed calls without a price, which are not included in cost_usd.';
COMMENT ON COLUMN sessions.dropped IS 'The number of records that were not written. [records]';
COMMENT ON COLUMN sessions.incomplete IS 'Whether data is missing: records were dropped, or a segment of the session is damaged.';
COMMENT ON COLUMN sessions.conversation_id IS 'The ID of the first session of the conversation: the session''s own ID, unless it resumes an earlier session.';
COMMENT ON COLUMN sessions.continues_session_id IS 'The ID of the session that it resumes or forks, or NULL.';
COMMENT ON COLUMN sessions.relation IS '`resume`: the session continues the same conversation; `fork`: it is a new conversation that starts like the earlier one; NULL without an earlier session.';
COMMENT ON COLUMN sessions.forked_turn IS 'For a session of `agentobs fork`, the turn of the last replayed response in the parent; else NULL.';
COMMENT ON COLUMN sessions.replayed_requests IS 'The number of LLM requests that a fork answered from a recording, at no cost.';
COMMENT ON COLUMN sessions.is_telemetry IS 'Whether the session only contains telemetry that `agentobs collect` received. Lists and counts of sessions leave such sessions out.';
