-- The agent loop: permission decisions, and other external inputs.

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
COMMENT ON VIEW permission_decisions IS 'One row for each permission decision on a tool call, with the outcome of the call.';
COMMENT ON COLUMN permission_decisions.session_id IS 'The ID of the session.';
COMMENT ON COLUMN permission_decisions.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN permission_decisions.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN permission_decisions.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN permission_decisions.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN permission_decisions.tool IS 'The canonical name of the tool.';
COMMENT ON COLUMN permission_decisions.behavior IS '`allow` or `deny`.';
COMMENT ON COLUMN permission_decisions.reason_type IS 'What made the decision: `rule`, `mode`, `safety_check`, `hook`, `classifier` or `person`.';
COMMENT ON COLUMN permission_decisions.source IS 'The source of the rule, or NULL if no rule made the decision.';
COMMENT ON COLUMN permission_decisions.resolver IS 'Who or what answered, as in permissions.';
COMMENT ON COLUMN permission_decisions.rule IS 'The rule that made the decision, or NULL.';
COMMENT ON COLUMN permission_decisions.approval_requested IS 'Whether the loop requested an approval, for example from a person.';
COMMENT ON COLUMN permission_decisions.approval_wait_ms IS 'The duration of the approval wait; 0 if no approval was requested. [ms]';
COMMENT ON COLUMN permission_decisions.at_ns IS 'When the decision was made. [ns since 1970 UTC]';
COMMENT ON COLUMN permission_decisions.decided_at IS 'The same time as a timestamp. [UTC]';
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
COMMENT ON VIEW world_questions IS 'One row for each external input of the agent loop, except responses of the model and results of tools: approvals, checks, messages during the run, and aborts.';
COMMENT ON COLUMN world_questions.session_id IS 'The ID of the session.';
COMMENT ON COLUMN world_questions.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN world_questions.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN world_questions.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN world_questions.kind IS 'The kind of input, as in world_answers, such as `consent`, `check`, `path`, `steering` or `abort`.';
COMMENT ON COLUMN world_questions.key IS 'Identifies the input among the inputs of its kind in its lane.';
COMMENT ON COLUMN world_questions.started_ns IS 'When the input was requested. [ns since 1970 UTC]';
COMMENT ON COLUMN world_questions.started_at IS 'The same time as a timestamp. [UTC]';
COMMENT ON COLUMN world_questions.duration_ms IS 'How long the answer took. [ms]';
COMMENT ON COLUMN world_questions.answer_bytes IS 'Size of the answer. [bytes]';
