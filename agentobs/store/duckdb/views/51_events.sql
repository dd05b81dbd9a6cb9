-- Events: descriptions of the columns of the stream, estimates for sampled events, and the handling of tool calls.

COMMENT ON VIEW event_log IS 'One row for each event, from all tables; docs/events.md describes each kind.';
COMMENT ON COLUMN event_log.session_id IS 'The ID of the session.';
COMMENT ON COLUMN event_log.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN event_log.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN event_log.lane IS 'The lane: `main`, or the lane of a sub-agent; NULL if unknown.';
COMMENT ON COLUMN event_log.query_source IS 'The purpose of the LLM request to which the event belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory`, `summary` or `side`; NULL if unknown.';
COMMENT ON COLUMN event_log.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN event_log.depth IS 'The depth in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN event_log.session_sequence IS 'The number of the event among the facts of the session, from 1.';
COMMENT ON COLUMN event_log.at_ns IS 'When the event happened, or started. [ns since 1970 UTC]';
COMMENT ON COLUMN event_log.kind IS 'The kind of event.';
COMMENT ON COLUMN event_log.label IS 'The label of the event, or NULL.';
COMMENT ON COLUMN event_log.labels IS 'Additional labels of the event, by name.';
COMMENT ON COLUMN event_log.numbers IS 'The numbers of the event, by name; true is 1, false is 0.';
COMMENT ON COLUMN event_log.rate IS 'The sampling rate of the kind: each event represents 1/rate events.';

-- Some kinds may be sampled: each recorded event represents 1/rate of them.

CREATE OR REPLACE MACRO estimated_count(rate) AS coalesce(sum(1.0 / rate), 0.0);
CREATE OR REPLACE MACRO estimated_sum(amount, rate) AS coalesce(sum(amount / rate), 0.0);

CREATE OR REPLACE VIEW events_estimated AS
SELECT session_id, kind, label, count(*) AS recorded, estimated_count(rate) AS estimated
FROM events
GROUP BY session_id, kind, label;
COMMENT ON VIEW events_estimated IS 'The number of events of each kind in a session, including events that sampling discarded.';
COMMENT ON COLUMN events_estimated.session_id IS 'The ID of the session.';
COMMENT ON COLUMN events_estimated.kind IS 'The kind of event.';
COMMENT ON COLUMN events_estimated.label IS 'The label of the events, or NULL.';
COMMENT ON COLUMN events_estimated.recorded IS 'The number of events that were kept.';
COMMENT ON COLUMN events_estimated.estimated IS 'The estimated number of events; exact if all were kept, otherwise an unbiased estimate.';

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
COMMENT ON VIEW tool_handling IS 'One row for each result of a tool call, with the sizes of the requested input, the executed input, the result, and the result that the model got.';
COMMENT ON COLUMN tool_handling.session_id IS 'The ID of the session.';
COMMENT ON COLUMN tool_handling.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN tool_handling.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN tool_handling.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN tool_handling.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN tool_handling.requested_name IS 'The name of the tool as the model called it.';
COMMENT ON COLUMN tool_handling.tool IS 'The canonical name of the tool; NULL if there is no such tool, or if the row was derived from requests.';
COMMENT ON COLUMN tool_handling.outcome IS 'The outcome of the call: `executed`; `substituted` (the tool ran, and a hook replaced the result); `deduplicated` (ID and input were used before); `blocked` (a hook vetoed the call); `answered` (a hook answered in place of the tool); `unavailable` (the tool was withdrawn, or the breaker of its service was open); `denied`; `unknown` (no such tool); `invalid` (the input is invalid); `skipped` (a message arrived first); `aborted`.';
COMMENT ON COLUMN tool_handling.execution_outcome IS 'The same as outcome, except that `executed` is split into `executed`, `failed` and `timeout`.';
COMMENT ON COLUMN tool_handling.requested_bytes IS 'Size of the input that the model sent; NULL if the row was derived from requests. [bytes]';
COMMENT ON COLUMN tool_handling.executed_bytes IS 'Size of the input that the tool got; NULL if the tool did not run. [bytes]';
COMMENT ON COLUMN tool_handling.coerced IS 'The number of arguments whose type was converted.';
COMMENT ON COLUMN tool_handling.input_rewritten IS 'Whether hooks or a person changed the input.';
COMMENT ON COLUMN tool_handling.raw_result_bytes IS 'Size of the result before hooks changed it. [bytes]';
COMMENT ON COLUMN tool_handling.result_bytes IS 'Size of the result that the model got. [bytes]';
