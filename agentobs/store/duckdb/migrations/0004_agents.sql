-- Agents that start others, and what keeps a long conversation going: whose request it is, and in which chain.

ALTER TABLE attempts ADD COLUMN chain_id VARCHAR;
ALTER TABLE attempts ADD COLUMN depth BIGINT;
COMMENT ON COLUMN attempts.chain_id IS 'The requests of one turn, those made for its upkeep (a summary, a hook) included; NULL where nobody said.';
COMMENT ON COLUMN attempts.depth IS 'The place of the request in its chain, from 1; all attempts at it have the same, and one that is made to answer a question of another is one deeper.';

ALTER TABLE session_starts ADD COLUMN continues_session_id VARCHAR;
ALTER TABLE session_starts ADD COLUMN relation VARCHAR;
COMMENT ON COLUMN session_starts.continues_session_id IS 'The earlier session that this one goes on from, by its full id; NULL where there is none.';
COMMENT ON COLUMN session_starts.relation IS '`resume`: it is the same conversation; `fork`: another one that begins like it; NULL where there is no earlier session.';

ALTER TABLE span_starts ADD COLUMN linked_span_id VARCHAR;
COMMENT ON COLUMN span_starts.linked_span_id IS 'The span of another trace that started this one, whose work outlives that; NULL where there is none.';

-- What each prompt was made of, so that a miss of the cache can be blamed on what changed.

CREATE TABLE zones (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    attempt_id VARCHAR,
    compared_attempt_id VARCHAR,
    betas VARCHAR,
    model VARCHAR,
    tools VARCHAR,
    system VARCHAR,
    parameters VARCHAR,
    system_dynamic VARCHAR,
    messages VARCHAR,
    repeated_messages BIGINT,
    repeated VARCHAR
);
COMMENT ON TABLE zones IS 'The zones of each prompt as keyed digests, marks of the cache left out: equal digests, equal content. They can be compared within one home alone.';
COMMENT ON COLUMN zones.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN zones.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN zones.session_id IS 'The session.';
COMMENT ON COLUMN zones.attempt_id IS 'The attempt.';
COMMENT ON COLUMN zones.compared_attempt_id IS 'The earlier attempt whose prompt it goes on from, or is the nearest to; NULL where a conversation begins.';
COMMENT ON COLUMN zones.betas IS 'The `anthropic-beta` header; NULL without one.';
COMMENT ON COLUMN zones.model IS 'The model and its speed.';
COMMENT ON COLUMN zones.tools IS 'The tools; NULL without any.';
COMMENT ON COLUMN zones.system IS 'The system prompt up to its first mark of the cache; all of it where none follows. NULL without one.';
COMMENT ON COLUMN zones.parameters IS 'Tool choice and thinking; NULL without either.';
COMMENT ON COLUMN zones.system_dynamic IS 'The system prompt after its first mark; NULL where nothing follows.';
COMMENT ON COLUMN zones.messages IS 'All messages; NULL where the recorder did not know their beginning any more.';
COMMENT ON COLUMN zones.repeated_messages IS 'How many messages the earlier prompt had; NULL without one. [messages]';
COMMENT ON COLUMN zones.repeated IS 'So many first messages of this prompt: equal to `messages` of the earlier one where it goes on from it. NULL where it has fewer.';
COMMENT ON COLUMN prefixes.changed IS 'What changed first, in the order of the prompt: `betas`, `model`, `tools`, `system`, `parameters` (tool choice, thinking), `system_dynamic` (what follows the first mark) or `messages`; NULL where nothing did. Marks of the cache make no difference.';

-- Words that came with hooks, agents and long conversations.

COMMENT ON COLUMN world_answers.kind IS 'About a call: `consent` (a person was asked), `check` (the tool looked at its input), `path` (links were resolved). What came from outside: `steering`, `follow_up`, `tool_set`, `hook`, `section` (of the system prompt), `memory`, `conversation` (an earlier session), `keep` (where a long report lies), `refresh` (of credentials), `spent_today`. What depended on who came first or how late it was: `limit` (of a budget), `background` (agents that had ended), `elapsed`. `compacted`: somebody made the conversation shorter by hand. `abort`: it was stopped.';
COMMENT ON COLUMN tool_results.outcome IS '`executed`; `failed`; `timeout`; `aborted` (stopped, or never begun); answered by the loop itself: `invalid` (the input did not fit), `unknown` (no such tool), `denied` (not permitted), `blocked` (a hook had a veto), `skipped` (something else was said first) or `duplicate` (its id was used before).';
COMMENT ON COLUMN permissions.reason_type IS 'What decided: `rule`, `mode`, `safety_check`, `hook`, `classifier` or `person`.';
COMMENT ON COLUMN permissions.resolver IS 'Who answered: `rule`, `mode`, `safety_check`, `hook`, `classifier`, `person`, or `nobody` where there was none to ask.';

-- Agents beside each other may get calls of one id, so a result says whose it is.

ALTER TABLE tool_results ADD COLUMN lane VARCHAR;
COMMENT ON COLUMN tool_results.lane IS 'The lane of the call; NULL in records that were written before this was noted.';
