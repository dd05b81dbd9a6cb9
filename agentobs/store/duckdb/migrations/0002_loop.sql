-- The loop: decisions about tool calls, what else the world was asked, and for whom the model was asked.
--
-- A migration that was released is never edited; the next one is added. A column that is added has the
-- default of its field, which records that were written before it have, too.

ALTER TABLE attempts ADD COLUMN query_source VARCHAR DEFAULT 'main';
COMMENT ON COLUMN attempts.query_source IS 'Who asks: `main` or `sub_agent`, or one of the calls made for their upkeep: `compaction`, `hook`, `classifier`, `memory` or `summary`.';

ALTER TABLE tool_results ADD COLUMN tries BIGINT DEFAULT 1;
COMMENT ON COLUMN tool_results.tries IS 'How often the tool was begun; above 1 only for tools that allow retries, and 1 where it was not ours to run.';
COMMENT ON COLUMN tool_results.outcome IS '`executed`; `failed`; `timeout`; `aborted` (stopped, or never begun); answered by the loop itself: `invalid` (the input did not fit), `unknown` (no such tool), `denied` (not permitted), `skipped` (something else was said first) or `duplicate` (its id was used before).';

CREATE TABLE permissions (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    tool_use_id VARCHAR,
    tool VARCHAR,
    at_ns BIGINT,
    behaviour VARCHAR,
    reason_type VARCHAR,
    source VARCHAR,
    resolver VARCHAR,
    rule VARCHAR,
    asked BOOLEAN,
    waited_ns BIGINT
);
COMMENT ON TABLE permissions IS 'Decisions whether a tool call may run.';
COMMENT ON COLUMN permissions.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN permissions.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN permissions.session_id IS 'The session.';
COMMENT ON COLUMN permissions.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN permissions.lane IS 'The lane.';
COMMENT ON COLUMN permissions.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN permissions.tool_use_id IS 'The provider''s id of the call.';
COMMENT ON COLUMN permissions.tool IS 'The tool, by its own name.';
COMMENT ON COLUMN permissions.at_ns IS 'When it was decided. [ns since 1970 UTC]';
COMMENT ON COLUMN permissions.behaviour IS '`allow` or `deny`.';
COMMENT ON COLUMN permissions.reason_type IS 'What decided: `rule`, `mode`, `safety_check`, `hook` or `person`.';
COMMENT ON COLUMN permissions.source IS 'Where the rule stands: `policy`, `project`, `local`, `user`, `command_line` or `session`; NULL where no rule decided.';
COMMENT ON COLUMN permissions.resolver IS 'Who answered, such as `rules`, a person, or `nobody` where there was none to ask.';
COMMENT ON COLUMN permissions.rule IS 'The rule that decided, a keyed digest where it is no label; NULL where none did.';
COMMENT ON COLUMN permissions.asked IS 'Whether somebody outside the loop was asked.';
COMMENT ON COLUMN permissions.waited_ns IS 'How long that took; 0 where nobody was asked. [ns]';

CREATE TABLE world_answers (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    kind VARCHAR,
    key VARCHAR,
    started_ns BIGINT,
    duration_ns BIGINT,
    answer_bytes BIGINT,
    content VARCHAR
);
COMMENT ON TABLE world_answers IS 'What the loop asked of the world beside model and tools, and was answered: whatever else enters a run from outside.';
COMMENT ON COLUMN world_answers.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN world_answers.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN world_answers.session_id IS 'The session.';
COMMENT ON COLUMN world_answers.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN world_answers.lane IS 'The lane.';
COMMENT ON COLUMN world_answers.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN world_answers.kind IS '`consent`: a person was asked; `check`: the tool looked at its input; `path`: links were resolved; `tool_set`: which tools are there; `steering`: something was said while it ran; `follow_up`: when it would have stopped; `abort`: it was stopped.';
COMMENT ON COLUMN world_answers.key IS 'What tells it from others of its kind in its lane, such as the id of a tool call, or where it was stopped.';
COMMENT ON COLUMN world_answers.started_ns IS 'When it was asked. [ns since 1970 UTC]';
COMMENT ON COLUMN world_answers.duration_ns IS 'How long the answer took. [ns]';
COMMENT ON COLUMN world_answers.answer_bytes IS 'Size of the answer. [bytes]';
COMMENT ON COLUMN world_answers.content IS 'Content id of question and answer.';
