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
ALTER TABLE session_starts ADD COLUMN source VARCHAR;
COMMENT ON COLUMN session_starts.source IS '`recorded`, as it ran; or the program whose log it was imported from, such as `claude-code`.';
UPDATE session_starts SET content = 'vault', source = 'recorded';

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

-- Where in its trace a call ran.

ALTER TABLE tool_results ADD COLUMN span_id VARCHAR;
COMMENT ON COLUMN tool_results.span_id IS 'The span that the call ran in. NULL where it was read off the wire, and in records from before this was noted.';

-- Where a fact belongs: who asked there, and at which place of which turn.

ALTER TABLE interaction_starts ADD COLUMN query_source VARCHAR;
ALTER TABLE interaction_ends ADD COLUMN lane VARCHAR;
ALTER TABLE interaction_ends ADD COLUMN query_source VARCHAR;
ALTER TABLE tool_results ADD COLUMN interaction_id VARCHAR;
ALTER TABLE tool_results ADD COLUMN turn BIGINT;
ALTER TABLE tool_uses ADD COLUMN query_source VARCHAR;
ALTER TABLE tool_uses ADD COLUMN chain_id VARCHAR;
ALTER TABLE tool_uses ADD COLUMN depth BIGINT;
ALTER TABLE tool_results ADD COLUMN query_source VARCHAR;
ALTER TABLE tool_results ADD COLUMN chain_id VARCHAR;
ALTER TABLE tool_results ADD COLUMN depth BIGINT;
ALTER TABLE permissions ADD COLUMN query_source VARCHAR;
ALTER TABLE permissions ADD COLUMN chain_id VARCHAR;
ALTER TABLE permissions ADD COLUMN depth BIGINT;
ALTER TABLE world_answers ADD COLUMN query_source VARCHAR;
ALTER TABLE world_answers ADD COLUMN chain_id VARCHAR;
ALTER TABLE world_answers ADD COLUMN depth BIGINT;
COMMENT ON COLUMN interaction_starts.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN interaction_ends.lane IS 'The lane. NULL in records from before this was noted.';
COMMENT ON COLUMN interaction_ends.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_results.interaction_id IS 'The interaction, or NULL outside of one. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_results.turn IS 'The turn within the lane, from 1, whose call it answers. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_uses.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_uses.chain_id IS 'The requests of one turn that it belongs to; NULL where nobody said.';
COMMENT ON COLUMN tool_uses.depth IS 'The place in that chain, from 1; NULL where nobody said.';
COMMENT ON COLUMN tool_results.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_results.chain_id IS 'The requests of one turn that it belongs to; NULL where nobody said.';
COMMENT ON COLUMN tool_results.depth IS 'The place in that chain, from 1; NULL where nobody said.';
COMMENT ON COLUMN permissions.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN permissions.chain_id IS 'The requests of one turn that it belongs to; NULL where nobody said.';
COMMENT ON COLUMN permissions.depth IS 'The place in that chain, from 1; NULL where nobody said.';
COMMENT ON COLUMN world_answers.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN world_answers.chain_id IS 'The requests of one turn that it belongs to; NULL where nobody said.';
COMMENT ON COLUMN world_answers.depth IS 'The place in that chain, from 1; NULL where nobody said.';

-- What a tool call asked for, and what ran.

ALTER TABLE tool_results ADD COLUMN tool VARCHAR;
ALTER TABLE tool_results ADD COLUMN asked_bytes BIGINT;
ALTER TABLE tool_results ADD COLUMN ran_bytes BIGINT;
ALTER TABLE tool_results ADD COLUMN coerced BIGINT;
COMMENT ON COLUMN tool_results.tool IS 'The tool that it means, by its own name; the model may have called it by an earlier one. NULL where there is none of that name, or it was read off the wire. NULL in records from before this was noted.';
COMMENT ON COLUMN tool_results.asked_bytes IS 'Size of the input as the model asked. NULL where it was read off the wire. NULL in records from before this was noted. [bytes]';
COMMENT ON COLUMN tool_results.ran_bytes IS 'Size of the input that the tool got: rewritten by hooks, changed to fit its types. NULL where nothing ran, or it was read off the wire. NULL in records from before this was noted. [bytes]';
COMMENT ON COLUMN tool_results.coerced IS 'Arguments that were of another type and were changed to fit. NULL where it was read off the wire. NULL in records from before this was noted.';
ALTER TABLE tool_results ADD COLUMN attempt_id VARCHAR;
ALTER TABLE tool_results ADD COLUMN ordinal BIGINT;
COMMENT ON COLUMN tool_results.attempt_id IS 'The attempt whose answer makes the call. NULL where the result was there before that answer had ended, and in records from before this was noted; `answered_calls` knows those, too.';
COMMENT ON COLUMN tool_results.ordinal IS 'The place of the call among those of that answer, from 1. NULL as above.';
COMMENT ON COLUMN tool_results.outcome IS 'What came of it. The tool ran: `executed`, or `failed` or `timeout`, which is what an executed call came to; `aborted`: it was stopped, or never begun. The loop answered itself: `invalid` (the input did not fit), `unknown` (no such tool), `denied` (not permitted), `blocked` (a hook had a veto), `skipped` (something else was said first), `deduplicated` (its id and input were used before; `duplicate` in older records). What hooks made of the result afterwards stands in events, kind `rewritten`.';
COMMENT ON COLUMN tool_results.result_bytes IS 'Size of the result as it came, before hooks changed what the model sees of it. [bytes]';
COMMENT ON COLUMN permissions.reason_type IS 'What decided: `rule`, `mode`, `safety_check`, `hook`, `classifier` or `person`.';

-- Spans that always end.

ALTER TABLE span_starts ADD COLUMN remote_parent VARCHAR;
ALTER TABLE span_starts ADD COLUMN numbers MAP(VARCHAR, DOUBLE);
ALTER TABLE span_starts ADD COLUMN labels MAP(VARCHAR, VARCHAR);
ALTER TABLE span_ends ADD COLUMN last_activity_ns BIGINT;
ALTER TABLE span_ends ADD COLUMN late BOOLEAN;
COMMENT ON COLUMN span_starts.remote_parent IS 'The trace context, as a W3C `traceparent`, in which another program started this one; NULL where none did, and in spans that lie in others.';
COMMENT ON COLUMN span_starts.numbers IS 'What was said of it in numbers, by name; NULL without any.';
COMMENT ON COLUMN span_starts.labels IS 'What was said of it in labels, by name; NULL without any.';
COMMENT ON COLUMN span_ends.status IS '`ok`, `error` or `cancelled`; `orphaned`: nobody ended it, so it was ended by us.';
COMMENT ON COLUMN span_ends.last_activity_ns IS 'Of an orphaned one, when something was last seen to happen in it; else NULL. [ns since 1970 UTC]';
COMMENT ON COLUMN span_ends.late IS 'Whether it was ended as orphaned before, and this is its true end.';
UPDATE span_ends SET late = false;
ALTER TABLE attempts ADD COLUMN adopted_span VARCHAR;
COMMENT ON COLUMN attempts.adopted_span IS 'The OpenTelemetry span of the call that the SDK, or the program, had made, as a W3C `traceparent`; NULL where there was none.';

-- What was not written, and what is known of attempts whose end never was.

ALTER TABLE session_ends ADD COLUMN given BIGINT;
ALTER TABLE session_ends ADD COLUMN written BIGINT;
COMMENT ON COLUMN session_ends.given IS 'Records of the session that its process had made until then, this one included. NULL in records from before this was noted. [records]';
COMMENT ON COLUMN session_ends.written IS 'Those of them that were written; the others are in `gaps`. NULL in records from before this was noted. [records]';

CREATE TABLE gaps (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    at_ns BIGINT,
    kind VARCHAR,
    reason VARCHAR,
    records BIGINT,
    session_sequence BIGINT
);
COMMENT ON TABLE gaps IS 'One row for the records of a session, of one kind, that were not written for one reason, noted as soon as something could be written again.';
COMMENT ON COLUMN gaps.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN gaps.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN gaps.session_id IS 'The session; `others` where too many were open to be told apart.';
COMMENT ON COLUMN gaps.at_ns IS 'When it was noted. [ns since 1970 UTC]';
COMMENT ON COLUMN gaps.kind IS 'The table in which they would have had their rows; what an exchange says in other tables is missing there, too.';
COMMENT ON COLUMN gaps.reason IS 'The error of the operating system (`ENOSPC`, `EIO` ...); `stopped`: the recording of the session had ended for such an error; `deleted`: they were written, and somebody took the segment away; `queue_full`: they came faster than they could be written; `closed`: they came after the end of the recording; `no_thread`: no thread could be begun; else the class of an error of ours.';
COMMENT ON COLUMN gaps.records IS 'How many. [records]';
COMMENT ON COLUMN gaps.session_sequence IS 'Its number among the facts of the session, from 1; a process that was forked goes on counting from where it was.';
COMMENT ON COLUMN attempts.outcome IS 'How it ended: `ok`; `http_error`; `stream_error`: an error within the stream; `cut`: the connection broke; `cancelled`: the client stopped reading; `no_answer`; `crashed`: its end was not recorded, for the process died or the disk refused, and the rest of the row is what was known until shortly before.';

-- What was deleted for good. It stands in a segment of its own, so that a store that is built anew agrees.

CREATE TABLE prunings (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    pruned_ns BIGINT,
    what VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE prunings IS 'Sessions that were pruned: of which nothing else is left, or only the facts.';
COMMENT ON COLUMN prunings.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN prunings.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN prunings.session_id IS 'The session.';
COMMENT ON COLUMN prunings.pruned_ns IS 'When it was pruned. [ns since 1970 UTC]';
COMMENT ON COLUMN prunings.what IS '`content`: what was said; `all`: its facts, too.';
COMMENT ON COLUMN prunings.session_sequence IS 'Always NULL: it is told from outside of the session.';

-- Where a span belongs.

ALTER TABLE span_starts ADD COLUMN interaction_id VARCHAR;
ALTER TABLE span_starts ADD COLUMN turn BIGINT;
ALTER TABLE span_starts ADD COLUMN query_source VARCHAR;
ALTER TABLE span_starts ADD COLUMN chain_id VARCHAR;
ALTER TABLE span_starts ADD COLUMN depth BIGINT;
COMMENT ON COLUMN span_starts.interaction_id IS 'The interaction, or NULL outside of one. NULL in records from before this was noted.';
COMMENT ON COLUMN span_starts.turn IS 'The turn within the lane, from 1, or NULL outside of one. NULL in records from before this was noted.';
COMMENT ON COLUMN span_starts.query_source IS 'Who asks there: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`. NULL in records from before this was noted.';
COMMENT ON COLUMN span_starts.chain_id IS 'The requests of one turn that it belongs to; NULL where nobody said.';
COMMENT ON COLUMN span_starts.depth IS 'The place in that chain, from 1; NULL where nobody said.';
