-- What makes recordings safe to keep and complete to read: the order of a session's facts, events that say where they
-- belong, spans that always end, and segments that were compressed or pruned.

-- The order of what a session's facts say, across all tables and segments.

ALTER TABLE session_starts ADD COLUMN session_sequence BIGINT;
ALTER TABLE session_ends ADD COLUMN session_sequence BIGINT;
ALTER TABLE interaction_starts ADD COLUMN session_sequence BIGINT;
ALTER TABLE interaction_ends ADD COLUMN session_sequence BIGINT;
ALTER TABLE attempts ADD COLUMN session_sequence BIGINT;
ALTER TABLE usage ADD COLUMN session_sequence BIGINT;
ALTER TABLE prefixes ADD COLUMN session_sequence BIGINT;
ALTER TABLE zones ADD COLUMN session_sequence BIGINT;
ALTER TABLE tool_uses ADD COLUMN session_sequence BIGINT;
ALTER TABLE tool_results ADD COLUMN session_sequence BIGINT;
ALTER TABLE permissions ADD COLUMN session_sequence BIGINT;
ALTER TABLE world_answers ADD COLUMN session_sequence BIGINT;
ALTER TABLE events ADD COLUMN session_sequence BIGINT;
ALTER TABLE span_starts ADD COLUMN session_sequence BIGINT;
ALTER TABLE span_ends ADD COLUMN session_sequence BIGINT;
COMMENT ON COLUMN session_starts.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN session_ends.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN interaction_starts.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN interaction_ends.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN attempts.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN usage.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN prefixes.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN zones.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_uses.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_results.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN permissions.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN world_answers.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN events.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN span_starts.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';
COMMENT ON COLUMN span_ends.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was. NULL in records from before this was noted.';

ALTER TABLE session_starts ADD COLUMN content VARCHAR;
ALTER TABLE session_starts ADD COLUMN options VARCHAR;
COMMENT ON COLUMN session_starts.content IS 'Where what was said may go: `off`, nowhere; `vault`, into the content files; `export`, to the backends as well.';
COMMENT ON COLUMN session_starts.options IS 'A digest of the options of its process; equal options, equal digests. NULL in records from before this was noted.';
UPDATE session_starts SET content = 'vault';

ALTER TABLE events ADD COLUMN query_source VARCHAR;
ALTER TABLE events ADD COLUMN chain_id VARCHAR;
ALTER TABLE events ADD COLUMN depth BIGINT;
ALTER TABLE events ADD COLUMN labels MAP(VARCHAR, VARCHAR);
ALTER TABLE events ADD COLUMN rate DOUBLE;
COMMENT ON COLUMN events.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN events.chain_id IS 'The requests of one turn that it belongs to; NULL where nobody said.';
COMMENT ON COLUMN events.depth IS 'The place in that chain, from 1; NULL where nobody said.';
COMMENT ON COLUMN events.labels IS 'What it says in words, by name, each a label; NULL without any.';
COMMENT ON COLUMN events.rate IS 'The share of the events of its kind that are kept, above 0 to 1: each stands for 1/rate events.';
UPDATE events SET query_source = 'main', rate = 1;

-- What tells a failed session without a word of its content.

ALTER TABLE tool_uses ADD COLUMN input_similarity BIGINT;
ALTER TABLE tool_results ADD COLUMN text_characters BIGINT;
ALTER TABLE tool_results ADD COLUMN error_kind VARCHAR;
ALTER TABLE attempts ADD COLUMN claims_success BOOLEAN;
COMMENT ON COLUMN tool_uses.input_similarity IS 'A keyed number of its input: of the 64 bits of two inputs that are nearly the same a few differ, bit_count(xor(one, other)), of others about half. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_results.text_characters IS 'How much text it has; images and the like have none. NULL in records from before this was noted. [characters]';
COMMENT ON COLUMN tool_results.error_kind IS 'Of an error that was read off the wire, by its words: `schema`, the input did not fit; `denied`, somebody did not permit it; `semantic`, anything else. Else NULL: where our loop ran it the outcome tells.';
COMMENT ON COLUMN attempts.claims_success IS 'Whether the answer, by its words, claims success and owns up to no failure. NULL but for an answer without calls to a request that carries the result of a call that failed.';
