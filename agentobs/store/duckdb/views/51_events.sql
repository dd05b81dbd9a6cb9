-- Events: descriptions of the columns of the stream, estimates for sampled events, and the handling of tool calls.

COMMENT ON VIEW event_log IS 'One row for each event, from all tables; docs/events.md describes each kind.';
COMMENT ON COLUMN event_log.session_id IS 'The session.';
COMMENT ON COLUMN event_log.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN event_log.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN event_log.lane IS 'The lane, or NULL.';
COMMENT ON COLUMN event_log.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`; NULL if unknown.';
COMMENT ON COLUMN event_log.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN event_log.depth IS 'The position in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN event_log.session_sequence IS 'Its number among the facts of the session, from 1.';
COMMENT ON COLUMN event_log.at_ns IS 'When it happened, or started. [ns since 1970 UTC]';
COMMENT ON COLUMN event_log.kind IS 'The kind.';
COMMENT ON COLUMN event_log.label IS 'Its label, or NULL.';
COMMENT ON COLUMN event_log.labels IS 'Its other labels by name.';
COMMENT ON COLUMN event_log.numbers IS 'Its numbers by name; what is true is 1, what is not 0.';
COMMENT ON COLUMN event_log.rate IS 'The sampling rate of its kind: it represents 1/rate events.';

-- Some kinds may be sampled: each recorded event represents 1/rate of them.

CREATE OR REPLACE MACRO estimated_count(rate) AS coalesce(sum(1.0 / rate), 0.0);
CREATE OR REPLACE MACRO estimated_sum(amount, rate) AS coalesce(sum(amount / rate), 0.0);

CREATE OR REPLACE VIEW events_estimated AS
SELECT session_id, kind, label, count(*) AS recorded, estimated_count(rate) AS estimated
FROM events
GROUP BY session_id, kind, label;
COMMENT ON VIEW events_estimated IS 'How many events there were of each kind in a session, those that were not kept included.';
COMMENT ON COLUMN events_estimated.session_id IS 'The session.';
COMMENT ON COLUMN events_estimated.kind IS 'The kind.';
COMMENT ON COLUMN events_estimated.label IS 'Their label, or NULL.';
COMMENT ON COLUMN events_estimated.recorded IS 'How many were kept.';
COMMENT ON COLUMN events_estimated.estimated IS 'How many there were: exact where all were kept, else an estimate that is right on average.';

-- The handling of tool calls, from the requested input to the result that the model got.

CREATE OR REPLACE VIEW tool_handling AS
WITH rewritten AS (
    SELECT
        session_id, interaction_id, lane, turn, labels['tool_use_id'] AS tool_use_id,
        bool_or(label = 'input') AS input, bool_or(label = 'output') AS output,
        arg_max(numbers['after_bytes'], session_sequence) FILTER (WHERE label = 'output') AS after_bytes
    FROM events
    WHERE kind = 'rewritten'
    GROUP BY ALL
)
SELECT
    r.session_id,
    r.interaction_id,
    r.lane,
    r.turn,
    r.tool_use_id,
    u.name AS requested_name,
    r.tool,
    CASE
        WHEN coalesce(w.output, false) THEN 'substituted'
        WHEN r.outcome IN ('failed', 'timeout') THEN 'executed'
        ELSE r.outcome
    END AS outcome,
    r.outcome AS execution_outcome,
    r.requested_bytes,
    r.executed_bytes,
    r.coerced,
    coalesce(w.input, false) AS input_rewritten,
    r.result_bytes AS raw_result_bytes,
    coalesce(w.after_bytes::BIGINT, r.result_bytes) AS result_bytes
FROM tool_results AS r
LEFT JOIN rewritten AS w
    ON r.session_id = w.session_id AND r.tool_use_id = w.tool_use_id AND r.lane = w.lane
    AND r.turn IS NOT DISTINCT FROM w.turn AND r.interaction_id IS NOT DISTINCT FROM w.interaction_id
LEFT JOIN answered_calls AS a ON r.segment_id = a.segment_id AND r.sequence = a.sequence
LEFT JOIN tool_uses AS u
    ON a.session_id = u.session_id AND a.attempt_id = u.attempt_id AND a.ordinal = u.ordinal;
COMMENT ON VIEW tool_handling IS 'One row for each result of a tool call: the requested input, the executed input, the result, and what the model got.';
COMMENT ON COLUMN tool_handling.session_id IS 'The session.';
COMMENT ON COLUMN tool_handling.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN tool_handling.lane IS 'The lane.';
COMMENT ON COLUMN tool_handling.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN tool_handling.tool_use_id IS 'The provider''s ID of the call.';
COMMENT ON COLUMN tool_handling.requested_name IS 'The tool as the model called it.';
COMMENT ON COLUMN tool_handling.tool IS 'The canonical name of the tool; NULL if there is no such tool, or if the row was derived from requests.';
COMMENT ON COLUMN tool_handling.outcome IS 'The outcome of the call: `executed`; `substituted` (it ran, and a hook replaced the result); `deduplicated` (its ID and input were used before); `blocked` (a hook vetoed it); `denied`; `unknown` (no such tool); `invalid` (the input is invalid); `skipped` (a message arrived first); `aborted`.';
COMMENT ON COLUMN tool_handling.execution_outcome IS 'The same, and how an executed call ended: `executed`, `failed` or `timeout`.';
COMMENT ON COLUMN tool_handling.requested_bytes IS 'Size of the input that the model sent; NULL if the row was derived from requests. [bytes]';
COMMENT ON COLUMN tool_handling.executed_bytes IS 'Size of the input that the tool got; NULL where nothing ran. [bytes]';
COMMENT ON COLUMN tool_handling.coerced IS 'Arguments that were changed to fit their types.';
COMMENT ON COLUMN tool_handling.input_rewritten IS 'Whether hooks changed the input.';
COMMENT ON COLUMN tool_handling.raw_result_bytes IS 'Size of the result before hooks. [bytes]';
COMMENT ON COLUMN tool_handling.result_bytes IS 'Size of the result as the model saw it. [bytes]';
