-- The loop: decisions about tool calls, and other inputs from outside.

CREATE OR REPLACE VIEW permission_decisions AS
SELECT
    p.session_id,
    p.interaction_id,
    p.lane,
    p.turn,
    p.tool_use_id,
    p.tool,
    p.behavior,
    p.reason_type,
    p.source,
    p.resolver,
    p.rule,
    p.approval_requested,
    p.approval_wait_ns / 1e6 AS approval_wait_ms,
    p.at_ns,
    make_timestamp_ns(p.at_ns) AS decided_at,
    r.outcome
FROM permissions AS p
LEFT JOIN decided_calls AS d ON p.segment_id = d.segment_id AND p.sequence = d.sequence
LEFT JOIN tool_results AS r ON d.result_segment_id = r.segment_id AND d.result_sequence = r.sequence;
COMMENT ON VIEW permission_decisions IS 'One row for each decision whether a tool call may run, with the outcome of the call.';
COMMENT ON COLUMN permission_decisions.session_id IS 'The session.';
COMMENT ON COLUMN permission_decisions.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN permission_decisions.lane IS 'The lane.';
COMMENT ON COLUMN permission_decisions.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN permission_decisions.tool_use_id IS 'The provider''s ID of the call.';
COMMENT ON COLUMN permission_decisions.tool IS 'The tool, by its own name.';
COMMENT ON COLUMN permission_decisions.behavior IS '`allow` or `deny`.';
COMMENT ON COLUMN permission_decisions.reason_type IS 'What decided: `rule`, `mode`, `safety_check`, `hook` or `person`.';
COMMENT ON COLUMN permission_decisions.source IS 'Where the rule stands, or NULL.';
COMMENT ON COLUMN permission_decisions.resolver IS 'Who answered.';
COMMENT ON COLUMN permission_decisions.rule IS 'The rule that decided, or NULL.';
COMMENT ON COLUMN permission_decisions.approval_requested IS 'Whether approval was requested outside the loop.';
COMMENT ON COLUMN permission_decisions.approval_wait_ms IS 'How long that took. [ms]';
COMMENT ON COLUMN permission_decisions.at_ns IS 'When it was decided. [ns since 1970 UTC]';
COMMENT ON COLUMN permission_decisions.decided_at IS 'The same instant, for people. [UTC]';
COMMENT ON COLUMN permission_decisions.outcome IS 'The outcome of the call, as in tool_calls; NULL without a result.';

CREATE OR REPLACE VIEW world_questions AS
SELECT
    session_id,
    interaction_id,
    lane,
    turn,
    kind,
    key,
    started_ns,
    make_timestamp_ns(started_ns) AS started_at,
    duration_ns / 1e6 AS duration_ms,
    answer_bytes
FROM world_answers;
COMMENT ON VIEW world_questions IS 'One row for each input of the loop that came from neither the model nor a tool: approvals, checks, messages during the run, and aborts.';
COMMENT ON COLUMN world_questions.session_id IS 'The session.';
COMMENT ON COLUMN world_questions.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN world_questions.lane IS 'The lane.';
COMMENT ON COLUMN world_questions.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN world_questions.kind IS '`consent`, `check`, `path`, `tool_set`, `steering`, `follow_up` or `abort`.';
COMMENT ON COLUMN world_questions.key IS 'Identifies it among those of its kind in its lane.';
COMMENT ON COLUMN world_questions.started_ns IS 'When it was requested. [ns since 1970 UTC]';
COMMENT ON COLUMN world_questions.started_at IS 'The same instant, for people. [UTC]';
COMMENT ON COLUMN world_questions.duration_ms IS 'How long the answer took. [ms]';
COMMENT ON COLUMN world_questions.answer_bytes IS 'Size of the answer. [bytes]';
