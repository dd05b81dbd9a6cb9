-- The tables: one for each kind of fact, and four that the store keeps for itself.
--
-- The columns of a fact's table are the fields of its class in agentobs/records/facts.py, after the segment and the
-- sequence number of the record. The comments here are the only place that gives a column's meaning; the unit is at
-- the end in square brackets. `session_sequence` orders the facts of a session across all tables and segments.
--
-- (segment_id, sequence) is unique in every fact table, but no index enforces it: an index over ten million rows would
-- cost more to keep than the rows. What makes any number of ingests count a record once is `segments`: its watermark
-- shows up to where a segment was read, and it is published in the same generation as the rows that were read.
--
-- From version 0.1.0 on, a released migration is never edited; the next one is added. A column that is added has the
-- default of its field, which records that were written before it have, too.

CREATE TABLE meta (
    key VARCHAR,
    value VARCHAR
);
COMMENT ON TABLE meta IS 'What this file is.';
COMMENT ON COLUMN meta.key IS '`application`, `format` or `views`.';
COMMENT ON COLUMN meta.value IS '`agentobs`; the number of the newest migration; the digest of the text of the views.';

CREATE TABLE migrations (
    number BIGINT,
    name VARCHAR,
    applied_ns BIGINT
);
COMMENT ON TABLE migrations IS 'One row for each migration that this file has been through.';
COMMENT ON COLUMN migrations.number IS 'Its number, from 1.';
COMMENT ON COLUMN migrations.name IS 'The name of its file.';
COMMENT ON COLUMN migrations.applied_ns IS 'When it was applied. [ns since 1970 UTC]';

CREATE TABLE segments (
    segment_id VARCHAR,
    facts_offset BIGINT,
    sequence BIGINT,
    state VARCHAR,
    damaged_records BIGINT,
    missing_records BIGINT,
    opened_ns BIGINT
);
COMMENT ON TABLE segments IS 'One row for each segment of the journal, with the watermark up to which this file holds it.';
COMMENT ON COLUMN segments.segment_id IS 'The segment; also the name of its two files.';
COMMENT ON COLUMN segments.facts_offset IS 'How much of its facts file this store holds. [bytes]';
COMMENT ON COLUMN segments.sequence IS 'The sequence number of the last record that was read.';
COMMENT ON COLUMN segments.state IS '`open`: its process still ran; `sealed`: it was closed in order; `dead`: its process ended without closing it.';
COMMENT ON COLUMN segments.damaged_records IS 'Stretches of its facts file that did not read back. [records]';
COMMENT ON COLUMN segments.missing_records IS 'Sequence numbers that no record has, those of damaged records included. [records]';
COMMENT ON COLUMN segments.opened_ns IS 'When it was created. [ns since 1970 UTC]';

CREATE TABLE prices (
    model VARCHAR,
    service_tier VARCHAR,
    inference_geo VARCHAR,
    speed VARCHAR,
    valid_from_ns BIGINT,
    valid_to_ns BIGINT,
    prompt_tokens_from BIGINT,
    prompt_tokens_to BIGINT,
    input_usd_per_million DECIMAL(18, 6),
    output_usd_per_million DECIMAL(18, 6),
    cache_read_usd_per_million DECIMAL(18, 6),
    cache_write_5m_usd_per_million DECIMAL(18, 6),
    cache_write_1h_usd_per_million DECIMAL(18, 6),
    web_search_usd_per_thousand DECIMAL(18, 6),
    certainty VARCHAR,
    note VARCHAR,
    price_version VARCHAR,
    canonical_model VARCHAR
);
COMMENT ON TABLE prices IS 'What tokens cost: one row for each model and context that was used, period and size of the prompt. Exactly one row fits a call.';
COMMENT ON COLUMN prices.model IS 'The model as `usage` names it.';
COMMENT ON COLUMN prices.service_tier IS 'The service tier as `usage` names it, or NULL.';
COMMENT ON COLUMN prices.inference_geo IS 'The place of inference as `usage` names it, or NULL.';
COMMENT ON COLUMN prices.speed IS 'The speed as `usage` names it, or NULL.';
COMMENT ON COLUMN prices.valid_from_ns IS 'The first time at which this price is valid; 0 if it has no start. [ns since 1970 UTC]';
COMMENT ON COLUMN prices.valid_to_ns IS 'The first time at which it is no longer valid; the largest BIGINT if it has no end. [ns since 1970 UTC]';
COMMENT ON COLUMN prices.prompt_tokens_from IS 'The smallest prompt (input, cache reads and cache writes) that it holds for. [tokens]';
COMMENT ON COLUMN prices.prompt_tokens_to IS 'The smallest prompt that it does not apply to; the largest BIGINT if there is no limit. [tokens]';
COMMENT ON COLUMN prices.input_usd_per_million IS 'Uncached input; NULL if the model is unknown. [USD per million tokens]';
COMMENT ON COLUMN prices.output_usd_per_million IS 'Output, reasoning included. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_read_usd_per_million IS 'Input read from the cache. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_write_5m_usd_per_million IS 'Input written to the cache for 5 minutes. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_write_1h_usd_per_million IS 'Input written to the cache for 1 hour. [USD per million tokens]';
COMMENT ON COLUMN prices.web_search_usd_per_thousand IS 'Web searches that the provider ran. [USD per thousand requests]';
COMMENT ON COLUMN prices.certainty IS '`exact`; `estimated`: no price is published for this context, `note` contains the assumption; `unknown_model`: no price at all.';
COMMENT ON COLUMN prices.note IS 'What was added to the price list or assumed, or NULL.';
COMMENT ON COLUMN prices.price_version IS 'The version of the prices: the version of genai-prices, the digest of the overlay of agentobs, and that of the user''s own file if there is one, joined by `+`.';
COMMENT ON COLUMN prices.canonical_model IS 'The canonical name of the model for all its spellings: aliases, dated IDs, IDs of cloud platforms.';

CREATE TABLE session_starts (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    name VARCHAR,
    started_ns BIGINT,
    entry VARCHAR,
    agentobs_version VARCHAR,
    sdk_version VARCHAR,
    python_version VARCHAR,
    platform VARCHAR,
    tags MAP(VARCHAR, VARCHAR),
    arguments_content VARCHAR,
    continues_session_id VARCHAR,
    relation VARCHAR,
    session_sequence BIGINT,
    content VARCHAR,
    options VARCHAR,
    source VARCHAR,
    live_exports MAP(VARCHAR, VARCHAR),
    forked_turn BIGINT
);
COMMENT ON TABLE session_starts IS 'Sessions that started.';
COMMENT ON COLUMN session_starts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN session_starts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN session_starts.session_id IS 'The session.';
COMMENT ON COLUMN session_starts.name IS 'The name given by the author; a keyed digest if it is not a label.';
COMMENT ON COLUMN session_starts.started_ns IS 'When it started. [ns since 1970 UTC]';
COMMENT ON COLUMN session_starts.entry IS 'The function that started it, as `module:name`, or NULL.';
COMMENT ON COLUMN session_starts.agentobs_version IS 'The version of agentobs that recorded it.';
COMMENT ON COLUMN session_starts.sdk_version IS 'The version of the provider''s SDK, or NULL.';
COMMENT ON COLUMN session_starts.python_version IS 'The version of the interpreter.';
COMMENT ON COLUMN session_starts.platform IS 'The operating system, such as `linux`.';
COMMENT ON COLUMN session_starts.tags IS 'Labels set by the author, such as the git commit.';
COMMENT ON COLUMN session_starts.arguments_content IS 'Content ID of its name and the arguments of its entry.';
COMMENT ON COLUMN session_starts.continues_session_id IS 'The full ID of the earlier session that this one continues; NULL if there is none.';
COMMENT ON COLUMN session_starts.relation IS '`resume`: the same conversation; `fork`: another one that begins like it; NULL without an earlier session.';
COMMENT ON COLUMN session_starts.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN session_starts.content IS 'Where content may go: `off`, nowhere; `vault`, into the content files; `export`, to the backends as well.';
COMMENT ON COLUMN session_starts.options IS 'A digest of the options of its process; equal options, equal digests.';
COMMENT ON COLUMN session_starts.source IS '`recorded`, as it ran; or the program whose log it was imported from, such as `claude-code`.';
COMMENT ON COLUMN session_starts.live_exports IS 'Where telemetry went while it ran: the profile of each backend by its destination; NULL without any.';
COMMENT ON COLUMN session_starts.forked_turn IS 'For a session made by `agentobs fork`, the turn of the parent with the last replayed answer; else NULL.';

CREATE TABLE session_ends (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    ended_ns BIGINT,
    outcome VARCHAR,
    reason VARCHAR,
    signature VARCHAR,
    dropped BIGINT,
    session_sequence BIGINT,
    emitted BIGINT,
    written BIGINT,
    end_content VARCHAR,
    result_digest VARCHAR,
    result_type VARCHAR
);
COMMENT ON TABLE session_ends IS 'Sessions that ended.';
COMMENT ON COLUMN session_ends.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN session_ends.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN session_ends.session_id IS 'The session.';
COMMENT ON COLUMN session_ends.ended_ns IS 'When it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN session_ends.outcome IS '`completed`, `failed`, or `interrupted` (Ctrl-C or cancellation).';
COMMENT ON COLUMN session_ends.reason IS 'Why it failed: the class of an exception, the result of its last interaction, or the text that its code declared; a keyed digest if that is not a label.';
COMMENT ON COLUMN session_ends.signature IS 'Identifies a kind of failure: its type and where it came from. Equal failures have equal signatures.';
COMMENT ON COLUMN session_ends.dropped IS 'Records of the session that were not written. [records]';
COMMENT ON COLUMN session_ends.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN session_ends.emitted IS 'Records of the session that its process had emitted by then, this one included. [records]';
COMMENT ON COLUMN session_ends.written IS 'Those of them that were written; the others are in `gaps`. [records]';
COMMENT ON COLUMN session_ends.end_content IS 'Content ID of the reason as text and of the function''s result; NULL if there is neither, and with content off.';
COMMENT ON COLUMN session_ends.result_digest IS 'Keyed digest of what its function returned, equal for equal values; NULL if it returned nothing that is kept.';
COMMENT ON COLUMN session_ends.result_type IS 'The class of what its function returned, as `module:name`, or NULL.';

CREATE TABLE interaction_starts (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    started_ns BIGINT,
    session_sequence BIGINT,
    query_source VARCHAR
);
COMMENT ON TABLE interaction_starts IS 'Interactions that started: one user prompt to its final answer.';
COMMENT ON COLUMN interaction_starts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN interaction_starts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN interaction_starts.session_id IS 'The session.';
COMMENT ON COLUMN interaction_starts.interaction_id IS 'The interaction; also the ID of its trace.';
COMMENT ON COLUMN interaction_starts.lane IS 'The lane that it runs in: `main`, or that of a sub-agent.';
COMMENT ON COLUMN interaction_starts.started_ns IS 'When the prompt was received. [ns since 1970 UTC]';
COMMENT ON COLUMN interaction_starts.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN interaction_starts.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';

CREATE TABLE interaction_ends (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    ended_ns BIGINT,
    result VARCHAR,
    is_error BOOLEAN,
    session_sequence BIGINT,
    lane VARCHAR,
    query_source VARCHAR
);
COMMENT ON TABLE interaction_ends IS 'Interactions that ended.';
COMMENT ON COLUMN interaction_ends.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN interaction_ends.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN interaction_ends.session_id IS 'The session.';
COMMENT ON COLUMN interaction_ends.interaction_id IS 'The interaction.';
COMMENT ON COLUMN interaction_ends.ended_ns IS 'When it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN interaction_ends.result IS 'How it ended, such as `success` or `interrupted`.';
COMMENT ON COLUMN interaction_ends.is_error IS 'Whether that is an error.';
COMMENT ON COLUMN interaction_ends.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN interaction_ends.lane IS 'The lane.';
COMMENT ON COLUMN interaction_ends.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';

CREATE TABLE attempts (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    llm_request_id VARCHAR,
    attempt_id VARCHAR,
    attempt BIGINT,
    continues_attempt_id VARCHAR,
    span_id VARCHAR,
    started_ns BIGINT,
    headers_ns BIGINT,
    first_chunk_ns BIGINT,
    duration_ns BIGINT,
    method VARCHAR,
    endpoint VARCHAR,
    streamed BOOLEAN,
    model_requested VARCHAR,
    model VARCHAR,
    status BIGINT,
    outcome VARCHAR,
    error_type VARCHAR,
    stop_reason VARCHAR,
    message_id VARCHAR,
    request_id VARCHAR,
    retry_after_ms DOUBLE,
    message_count BIGINT,
    tool_use_count BIGINT,
    request_bytes BIGINT,
    response_bytes BIGINT,
    chunk_count BIGINT,
    redactions BIGINT,
    request_content VARCHAR,
    response_content VARCHAR,
    query_source VARCHAR DEFAULT 'main',
    chain_id VARCHAR,
    depth BIGINT,
    session_sequence BIGINT,
    claims_success BOOLEAN,
    adopted_span VARCHAR,
    origin VARCHAR
);
COMMENT ON TABLE attempts IS 'HTTP requests to the provider, each try of a call by itself.';
COMMENT ON COLUMN attempts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN attempts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN attempts.session_id IS 'The session.';
COMMENT ON COLUMN attempts.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN attempts.lane IS 'The lane in which it must recur in order: `main`, or that of a sub-agent.';
COMMENT ON COLUMN attempts.turn IS 'The turn within the lane, from 1; NULL for endpoints without turns.';
COMMENT ON COLUMN attempts.llm_request_id IS 'The logical call that this is a try of.';
COMMENT ON COLUMN attempts.attempt_id IS 'This attempt.';
COMMENT ON COLUMN attempts.attempt IS 'Its number among the tries of the call, from 1.';
COMMENT ON COLUMN attempts.continues_attempt_id IS 'The attempt whose answer this request continues, or NULL.';
COMMENT ON COLUMN attempts.span_id IS 'The span that was open, or NULL.';
COMMENT ON COLUMN attempts.started_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN attempts.headers_ns IS 'When the response headers arrived; NULL without a response. [ns after started_ns]';
COMMENT ON COLUMN attempts.first_chunk_ns IS 'When the first chunk of the body arrived; NULL without one. [ns after started_ns]';
COMMENT ON COLUMN attempts.duration_ns IS 'How long it took to the end of the answer. [ns]';
COMMENT ON COLUMN attempts.method IS 'The HTTP method.';
COMMENT ON COLUMN attempts.endpoint IS 'The path, without its query; each ID in it is replaced by `:id`.';
COMMENT ON COLUMN attempts.streamed IS 'Whether the answer was a stream of events.';
COMMENT ON COLUMN attempts.model_requested IS 'The model that the request names, or NULL.';
COMMENT ON COLUMN attempts.model IS 'The model that answered, or NULL.';
COMMENT ON COLUMN attempts.status IS 'The HTTP status; NULL without a response.';
COMMENT ON COLUMN attempts.outcome IS 'How it ended: `ok`; `http_error`; `stream_error`: an error within the stream; `cut`: the connection broke; `cancelled`: the client stopped reading; `no_response`; `crashed`: its end was not recorded because the process died or the disk failed, and the rest of the row is the last known state.';
COMMENT ON COLUMN attempts.error_type IS 'The provider''s type of the error, or the class of the transport''s; NULL without an error.';
COMMENT ON COLUMN attempts.stop_reason IS 'Why the model stopped, or NULL.';
COMMENT ON COLUMN attempts.message_id IS 'The provider''s ID of the message, or NULL.';
COMMENT ON COLUMN attempts.request_id IS 'The provider''s ID of the request, or NULL.';
COMMENT ON COLUMN attempts.retry_after_ms IS 'The delay before a retry that the provider requested, or NULL. [ms]';
COMMENT ON COLUMN attempts.message_count IS 'Messages in the request; NULL if it has no list of messages.';
COMMENT ON COLUMN attempts.tool_use_count IS 'Tool calls in the answer.';
COMMENT ON COLUMN attempts.request_bytes IS 'Size of the request body as it was sent. [bytes]';
COMMENT ON COLUMN attempts.response_bytes IS 'Size of the response body that arrived, content encoding undone. [bytes]';
COMMENT ON COLUMN attempts.chunk_count IS 'Pieces in which the body arrived.';
COMMENT ON COLUMN attempts.redactions IS 'Secrets that were redacted in the request body before it was written.';
COMMENT ON COLUMN attempts.request_content IS 'Content ID of the request, or NULL.';
COMMENT ON COLUMN attempts.response_content IS 'Content ID of the response, or NULL.';
COMMENT ON COLUMN attempts.query_source IS 'The purpose of the request: `main` or `sub_agent`, or one of the auxiliary calls: `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN attempts.chain_id IS 'The requests of one turn, auxiliary ones (a summary, a hook) included; NULL if unknown.';
COMMENT ON COLUMN attempts.depth IS 'The position of the request in its chain, from 1, the same for all its attempts; a request that serves another one is one deeper.';
COMMENT ON COLUMN attempts.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN attempts.claims_success IS 'Whether the wording of the answer claims success and admits no failure. NULL except for answers without tool calls to a request that contains the result of a failed call.';
COMMENT ON COLUMN attempts.adopted_span IS 'The OpenTelemetry span of the call that the SDK, or the program, had created, as a W3C `traceparent`; NULL if there was none.';
COMMENT ON COLUMN attempts.origin IS '`live`: it was sent to the provider; `replayed`: a fork answered it from a recording, and its usage is not billed.';

CREATE TABLE usage (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    attempt_id VARCHAR,
    at_ns BIGINT,
    iteration BIGINT,
    kind VARCHAR,
    billed BOOLEAN,
    model VARCHAR,
    input_tokens BIGINT,
    output_tokens BIGINT,
    reasoning_tokens BIGINT,
    cache_read_tokens BIGINT,
    cache_write_5m_tokens BIGINT,
    cache_write_1h_tokens BIGINT,
    web_search_requests BIGINT,
    service_tier VARCHAR,
    inference_geo VARCHAR,
    speed VARCHAR,
    certainty VARCHAR,
    web_fetch_requests BIGINT DEFAULT 0,
    code_execution_requests BIGINT DEFAULT 0,
    server_requests MAP(VARCHAR, BIGINT),
    other_counts MAP(VARCHAR, BIGINT),
    note VARCHAR,
    batch_result_id VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE usage IS 'Tokens as the provider counted them, in buckets that do not overlap. A response with iterations has one row for each and one for its top level.';
COMMENT ON COLUMN usage.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN usage.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN usage.session_id IS 'The session.';
COMMENT ON COLUMN usage.attempt_id IS 'The attempt that used them.';
COMMENT ON COLUMN usage.at_ns IS 'When that attempt was sent; it decides which price holds. [ns since 1970 UTC]';
COMMENT ON COLUMN usage.iteration IS '0 for the top level, from 1 for the iterations.';
COMMENT ON COLUMN usage.kind IS 'What was sampled: `message`, `compaction`, `advisor_message`, `fallback_message` and others.';
COMMENT ON COLUMN usage.billed IS 'Whether the invoice counts this row. Where there are iterations it counts those, not the top level.';
COMMENT ON COLUMN usage.model IS 'The model that is billed.';
COMMENT ON COLUMN usage.input_tokens IS 'Input neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN usage.output_tokens IS 'Output, reasoning included. [tokens]';
COMMENT ON COLUMN usage.reasoning_tokens IS 'The part of output spent on thinking; NULL if the provider does not report it. [tokens]';
COMMENT ON COLUMN usage.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN usage.cache_write_5m_tokens IS 'Input written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN usage.cache_write_1h_tokens IS 'Input written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN usage.web_search_requests IS 'Web searches that the provider ran. [requests]';
COMMENT ON COLUMN usage.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN usage.inference_geo IS 'Where inference ran, such as `global` or `us`, or NULL.';
COMMENT ON COLUMN usage.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN usage.certainty IS '`exact`; `lower_bound` where a stream ended before it gave its last counts; `estimated` where `note` names a count that was none.';
COMMENT ON COLUMN usage.web_fetch_requests IS 'Pages that the provider fetched; they cost their tokens and nothing more. [requests]';
COMMENT ON COLUMN usage.code_execution_requests IS 'Code executions by the provider; their time is billed beyond a free allowance, which no usage reports. [requests]';
COMMENT ON COLUMN usage.server_requests IS 'Requests of other kinds that the provider ran, by its name for them; NULL without any. They have no price here. [requests]';
COMMENT ON COLUMN usage.other_counts IS 'Counts that this version does not know, by their names; NULL without any. They are not billed here.';
COMMENT ON COLUMN usage.note IS 'Why the counts are an estimate: `<count>:<what it was>`, several joined by `/`; such a count stands as 0. NULL where all were counts.';
COMMENT ON COLUMN usage.batch_result_id IS '`<batch ID>/<custom_id>` of a result of the batch API, else NULL. Such a result counts once, however often it was fetched.';
COMMENT ON COLUMN usage.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';

CREATE TABLE tool_uses (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    attempt_id VARCHAR,
    tool_use_id VARCHAR,
    name VARCHAR,
    ordinal BIGINT,
    requested_ns BIGINT,
    input_bytes BIGINT,
    session_sequence BIGINT,
    input_similarity BIGINT,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT
);
COMMENT ON TABLE tool_uses IS 'Tool calls of the model.';
COMMENT ON COLUMN tool_uses.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN tool_uses.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN tool_uses.session_id IS 'The session.';
COMMENT ON COLUMN tool_uses.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN tool_uses.lane IS 'The lane.';
COMMENT ON COLUMN tool_uses.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN tool_uses.attempt_id IS 'The attempt whose answer contains it.';
COMMENT ON COLUMN tool_uses.tool_use_id IS 'The provider''s ID of the call.';
COMMENT ON COLUMN tool_uses.name IS 'The tool.';
COMMENT ON COLUMN tool_uses.ordinal IS 'Its place among the calls of the answer, from 1.';
COMMENT ON COLUMN tool_uses.requested_ns IS 'When the answer that contains it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_uses.input_bytes IS 'Size of its input. [bytes]';
COMMENT ON COLUMN tool_uses.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN tool_uses.input_similarity IS 'A keyed number of its input: of the 64 bits of two inputs that are nearly the same a few differ, bit_count(xor(one, other)), of others about half.';
COMMENT ON COLUMN tool_uses.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN tool_uses.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN tool_uses.depth IS 'The position in that chain, from 1; NULL if unknown.';

CREATE TABLE tool_results (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    tool_use_id VARCHAR,
    started_ns BIGINT,
    duration_ns BIGINT,
    result_ns BIGINT,
    source VARCHAR,
    outcome VARCHAR,
    is_error BOOLEAN,
    result_bytes BIGINT,
    content VARCHAR,
    attempts BIGINT DEFAULT 1,
    lane VARCHAR,
    session_sequence BIGINT,
    text_characters BIGINT,
    error_kind VARCHAR,
    span_id VARCHAR,
    interaction_id VARCHAR,
    turn BIGINT,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT,
    tool VARCHAR,
    requested_bytes BIGINT,
    executed_bytes BIGINT,
    coerced BIGINT,
    attempt_id VARCHAR,
    ordinal BIGINT
);
COMMENT ON TABLE tool_results IS 'Results of tool calls: where our own loop ran them, or where a request carried them.';
COMMENT ON COLUMN tool_results.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN tool_results.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN tool_results.session_id IS 'The session.';
COMMENT ON COLUMN tool_results.tool_use_id IS 'The provider''s ID of the call.';
COMMENT ON COLUMN tool_results.started_ns IS 'When the tool started; NULL if agentobs did not run it. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_results.duration_ns IS 'How long it ran; NULL if agentobs did not run it. [ns]';
COMMENT ON COLUMN tool_results.result_ns IS 'When the result was there, or when the request that carries it was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_results.source IS '`run`: our loop ran it; `wire`: it was read off a request.';
COMMENT ON COLUMN tool_results.outcome IS 'The outcome. The tool ran: `executed`, or `failed` or `timeout` for executed calls that ended so; `aborted`: it was stopped, or never started. The loop answered itself: `invalid` (the input is invalid), `unknown` (no such tool), `denied` (not permitted), `blocked` (a hook vetoed it), `skipped` (a message arrived first), `deduplicated` (its ID and input were used before). What hooks changed in the result afterwards is in events, kind `rewritten`.';
COMMENT ON COLUMN tool_results.is_error IS 'Whether the model was sent the result as an error.';
COMMENT ON COLUMN tool_results.result_bytes IS 'Size of the result before hooks changed what the model gets of it. [bytes]';
COMMENT ON COLUMN tool_results.content IS 'Content ID of input and result; NULL if only the requests contain them.';
COMMENT ON COLUMN tool_results.attempts IS 'How often the tool was started; above 1 only for tools that allow retries, and 1 if agentobs did not run it.';
COMMENT ON COLUMN tool_results.lane IS 'The lane of the call.';
COMMENT ON COLUMN tool_results.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN tool_results.text_characters IS 'How much text it has; images and the like have none. [characters]';
COMMENT ON COLUMN tool_results.error_kind IS 'The kind of an error that was derived from requests, by its words: `schema`, the input was invalid; `denied`, it was not permitted; `semantic`, anything else. Else NULL: for calls of our loop see the outcome.';
COMMENT ON COLUMN tool_results.span_id IS 'The span of the call. NULL if the row was derived from requests.';
COMMENT ON COLUMN tool_results.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN tool_results.turn IS 'The turn within the lane, from 1, whose call it answers.';
COMMENT ON COLUMN tool_results.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN tool_results.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN tool_results.depth IS 'The position in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN tool_results.tool IS 'The canonical name of the tool; the model may have used an older one. NULL if there is no such tool, or if the row was derived from requests.';
COMMENT ON COLUMN tool_results.requested_bytes IS 'Size of the input that the model sent. NULL if the row was derived from requests. [bytes]';
COMMENT ON COLUMN tool_results.executed_bytes IS 'Size of the input that the tool got: rewritten by hooks, changed to fit its types. NULL where nothing ran, or it was read off the wire. [bytes]';
COMMENT ON COLUMN tool_results.coerced IS 'Arguments of another type that were converted. NULL if the row was derived from requests.';
COMMENT ON COLUMN tool_results.attempt_id IS 'The attempt whose answer contains the call. NULL if the result existed before that answer had ended; `answered_calls` includes those.';
COMMENT ON COLUMN tool_results.ordinal IS 'The place of the call among those of that answer, from 1. NULL as above.';

CREATE TABLE events (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    at_ns BIGINT,
    kind VARCHAR,
    label VARCHAR,
    numbers MAP(VARCHAR, DOUBLE),
    session_sequence BIGINT,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT,
    labels MAP(VARCHAR, VARCHAR),
    rate DOUBLE
);
COMMENT ON TABLE events IS 'What happened at an instant, with a kind.';
COMMENT ON COLUMN events.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN events.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN events.session_id IS 'The session.';
COMMENT ON COLUMN events.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN events.lane IS 'The lane.';
COMMENT ON COLUMN events.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN events.at_ns IS 'When it happened. [ns since 1970 UTC]';
COMMENT ON COLUMN events.kind IS 'What happened.';
COMMENT ON COLUMN events.label IS 'What it happened to, or NULL.';
COMMENT ON COLUMN events.numbers IS 'Its numbers, by name; the unit is the end of the name.';
COMMENT ON COLUMN events.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN events.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN events.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN events.depth IS 'The position in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN events.labels IS 'Its labels by name; NULL without any.';
COMMENT ON COLUMN events.rate IS 'The sampling rate of its kind, above 0 to 1: each event represents 1/rate events.';

CREATE TABLE span_starts (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    trace_id VARCHAR,
    span_id VARCHAR,
    parent_span_id VARCHAR,
    lane VARCHAR,
    name VARCHAR,
    label VARCHAR,
    started_ns BIGINT,
    linked_span_id VARCHAR,
    session_sequence BIGINT,
    remote_parent VARCHAR,
    numbers MAP(VARCHAR, DOUBLE),
    labels MAP(VARCHAR, VARCHAR),
    interaction_id VARCHAR,
    turn BIGINT,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT
);
COMMENT ON TABLE span_starts IS 'Spans that started.';
COMMENT ON COLUMN span_starts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN span_starts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN span_starts.session_id IS 'The session.';
COMMENT ON COLUMN span_starts.trace_id IS 'The interaction, or the session outside of one.';
COMMENT ON COLUMN span_starts.span_id IS 'The span.';
COMMENT ON COLUMN span_starts.parent_span_id IS 'The span that it was opened in, or NULL.';
COMMENT ON COLUMN span_starts.lane IS 'The lane.';
COMMENT ON COLUMN span_starts.name IS 'What it spans, such as `llm_request`.';
COMMENT ON COLUMN span_starts.label IS 'What it is about, such as the model or the tool, or NULL.';
COMMENT ON COLUMN span_starts.started_ns IS 'When it started. [ns since 1970 UTC]';
COMMENT ON COLUMN span_starts.linked_span_id IS 'The span of another trace that started this one, which outlives it; NULL if there is none.';
COMMENT ON COLUMN span_starts.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN span_starts.remote_parent IS 'The trace context, as a W3C `traceparent`, in which another program started this one; NULL if none did, and for spans inside others.';
COMMENT ON COLUMN span_starts.numbers IS 'Its numbers by name; NULL without any.';
COMMENT ON COLUMN span_starts.labels IS 'Its labels by name; NULL without any.';
COMMENT ON COLUMN span_starts.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN span_starts.turn IS 'The turn within the lane, from 1, or NULL outside of one.';
COMMENT ON COLUMN span_starts.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN span_starts.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN span_starts.depth IS 'The position in that chain, from 1; NULL if unknown.';

CREATE TABLE span_ends (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    span_id VARCHAR,
    ended_ns BIGINT,
    status VARCHAR,
    error_type VARCHAR,
    session_sequence BIGINT,
    last_activity_ns BIGINT,
    late BOOLEAN
);
COMMENT ON TABLE span_ends IS 'Spans that ended.';
COMMENT ON COLUMN span_ends.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN span_ends.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN span_ends.session_id IS 'The session.';
COMMENT ON COLUMN span_ends.span_id IS 'The span.';
COMMENT ON COLUMN span_ends.ended_ns IS 'When it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN span_ends.status IS '`ok`, `error` or `cancelled`; `orphaned`: the program did not end it, so agentobs did.';
COMMENT ON COLUMN span_ends.error_type IS 'The class of the error, or the provider''s type of it; NULL without one.';
COMMENT ON COLUMN span_ends.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN span_ends.last_activity_ns IS 'Of an orphaned one, when something was last seen to happen in it; else NULL. [ns since 1970 UTC]';
COMMENT ON COLUMN span_ends.late IS 'Whether it was ended as orphaned before, and this is its true end.';

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
    behavior VARCHAR,
    reason_type VARCHAR,
    source VARCHAR,
    resolver VARCHAR,
    rule VARCHAR,
    approval_requested BOOLEAN,
    approval_wait_ns BIGINT,
    session_sequence BIGINT,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT
);
COMMENT ON TABLE permissions IS 'Decisions whether a tool call may run.';
COMMENT ON COLUMN permissions.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN permissions.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN permissions.session_id IS 'The session.';
COMMENT ON COLUMN permissions.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN permissions.lane IS 'The lane.';
COMMENT ON COLUMN permissions.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN permissions.tool_use_id IS 'The provider''s ID of the call.';
COMMENT ON COLUMN permissions.tool IS 'The tool, by its own name.';
COMMENT ON COLUMN permissions.at_ns IS 'When it was decided. [ns since 1970 UTC]';
COMMENT ON COLUMN permissions.behavior IS '`allow` or `deny`.';
COMMENT ON COLUMN permissions.reason_type IS 'What decided: `rule`, `mode`, `safety_check`, `hook`, `classifier` or `person`.';
COMMENT ON COLUMN permissions.source IS 'Where the rule stands: `policy`, `project`, `local`, `user`, `command_line` or `session`; NULL where no rule decided.';
COMMENT ON COLUMN permissions.resolver IS 'Who answered: `rule`, `mode`, `safety_check`, `hook`, `classifier`, `person`, or `unattended` if nobody could answer.';
COMMENT ON COLUMN permissions.rule IS 'The rule that decided, a keyed digest if it is not a label; NULL if none did.';
COMMENT ON COLUMN permissions.approval_requested IS 'Whether approval was requested outside the loop.';
COMMENT ON COLUMN permissions.approval_wait_ns IS 'How long that took; 0 if none was requested. [ns]';
COMMENT ON COLUMN permissions.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN permissions.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN permissions.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN permissions.depth IS 'The position in that chain, from 1; NULL if unknown.';

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
    content VARCHAR,
    session_sequence BIGINT,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT
);
COMMENT ON TABLE world_answers IS 'Inputs of the loop from outside, other than answers of the model and results of tools.';
COMMENT ON COLUMN world_answers.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN world_answers.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN world_answers.session_id IS 'The session.';
COMMENT ON COLUMN world_answers.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN world_answers.lane IS 'The lane.';
COMMENT ON COLUMN world_answers.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN world_answers.kind IS 'About a call: `consent` (a person''s approval), `check` (the tool checked its input), `path` (links were resolved). Inputs from outside: `steering`, `follow_up`, `tool_set`, `hook`, `section` (of the system prompt), `memory`, `conversation` (an earlier session), `keep` (where a long result is stored), `refresh` (of credentials), `spent_today`. Inputs that depend on order or time: `limit` (of a budget), `background` (agents that had ended), `elapsed`. `compacted`: the conversation was compacted by the user. `abort`: the run was stopped.';
COMMENT ON COLUMN world_answers.key IS 'Identifies it among those of its kind in its lane, such as the ID of a tool call, or the place where the run was stopped.';
COMMENT ON COLUMN world_answers.started_ns IS 'When it was requested. [ns since 1970 UTC]';
COMMENT ON COLUMN world_answers.duration_ns IS 'How long the answer took. [ns]';
COMMENT ON COLUMN world_answers.answer_bytes IS 'Size of the answer. [bytes]';
COMMENT ON COLUMN world_answers.content IS 'Content ID of question and answer.';
COMMENT ON COLUMN world_answers.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN world_answers.query_source IS 'The purpose of the requests: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN world_answers.chain_id IS 'The requests of one turn that it belongs to; NULL if unknown.';
COMMENT ON COLUMN world_answers.depth IS 'The position in that chain, from 1; NULL if unknown.';

CREATE TABLE prefixes (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    attempt_id VARCHAR,
    compared_attempt_id VARCHAR,
    changed VARCHAR,
    changed_message BIGINT,
    miss_reason VARCHAR,
    missed_tokens BIGINT,
    session_sequence BIGINT
);
COMMENT ON TABLE prefixes IS 'Requests whose prompt is more than an earlier one plus new messages, and those for which the provider reports a cache miss.';
COMMENT ON COLUMN prefixes.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN prefixes.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN prefixes.session_id IS 'The session.';
COMMENT ON COLUMN prefixes.attempt_id IS 'The attempt.';
COMMENT ON COLUMN prefixes.compared_attempt_id IS 'The earlier attempt that it was compared with, or NULL.';
COMMENT ON COLUMN prefixes.changed IS 'The first zone that changed, in the order of the prompt: `betas`, `model`, `tools`, `system`, `parameters` (tool choice, thinking), `system_dynamic` (after the first cache breakpoint) or `messages`; NULL if none did. Cache breakpoints themselves are ignored.';
COMMENT ON COLUMN prefixes.changed_message IS 'The first message that changed, from 1; NULL unless `changed` is `messages`.';
COMMENT ON COLUMN prefixes.miss_reason IS 'The type of the provider''s diagnostics.cache_miss_reason, such as `tools_changed`, or NULL.';
COMMENT ON COLUMN prefixes.missed_tokens IS 'Estimated input tokens that would have been read from the cache, as the provider reports; NULL if it does not. [tokens]';
COMMENT ON COLUMN prefixes.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';

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
    repeated VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE zones IS 'The zones of each prompt as keyed digests, without cache breakpoints: equal digests, equal content. They can only be compared within one home.';
COMMENT ON COLUMN zones.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN zones.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN zones.session_id IS 'The session.';
COMMENT ON COLUMN zones.attempt_id IS 'The attempt.';
COMMENT ON COLUMN zones.compared_attempt_id IS 'The earlier attempt whose prompt it continues, or the most similar one; NULL at the start of a conversation.';
COMMENT ON COLUMN zones.betas IS 'The `anthropic-beta` header; NULL without one.';
COMMENT ON COLUMN zones.model IS 'The model and its speed.';
COMMENT ON COLUMN zones.tools IS 'The tools; NULL without any.';
COMMENT ON COLUMN zones.system IS 'The system prompt up to its first cache breakpoint; all of it without one. NULL without a system prompt.';
COMMENT ON COLUMN zones.parameters IS 'Tool choice and thinking; NULL without either.';
COMMENT ON COLUMN zones.system_dynamic IS 'The system prompt after its first cache breakpoint; NULL if there is nothing after it.';
COMMENT ON COLUMN zones.messages IS 'All messages; NULL if the recorder no longer knew their beginning.';
COMMENT ON COLUMN zones.repeated_messages IS 'How many messages the earlier prompt had; NULL without one. [messages]';
COMMENT ON COLUMN zones.repeated IS 'The same number of first messages of this prompt: equal to `messages` of the earlier one if it continues it. NULL if it has fewer.';
COMMENT ON COLUMN zones.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';

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
COMMENT ON COLUMN gaps.session_id IS 'The session; `others` if too many were open to be counted separately.';
COMMENT ON COLUMN gaps.at_ns IS 'When it was noted. [ns since 1970 UTC]';
COMMENT ON COLUMN gaps.kind IS 'The table that lacks the rows; the rows of an exchange in other tables are missing, too.';
COMMENT ON COLUMN gaps.reason IS 'The error of the operating system (`ENOSPC`, `EIO` ...); `stopped`: the recording of the session had ended because of such an error; `deleted`: they were written, and the segment was deleted; `queue_full`: they came faster than they could be written; `closed`: they came after the end of the recording; `no_thread`: no thread could be started; else the class of an internal error.';
COMMENT ON COLUMN gaps.records IS 'How many. [records]';
COMMENT ON COLUMN gaps.session_sequence IS 'Its number among the facts of the session, from 1; a forked process continues the count.';

CREATE TABLE prunings (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    pruned_ns BIGINT,
    scope VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE prunings IS 'Sessions that were pruned, completely or except for their facts.';
COMMENT ON COLUMN prunings.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN prunings.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN prunings.session_id IS 'The session.';
COMMENT ON COLUMN prunings.pruned_ns IS 'When it was pruned. [ns since 1970 UTC]';
COMMENT ON COLUMN prunings.scope IS '`content`: prompts, responses and results; `all`: the facts, too.';
COMMENT ON COLUMN prunings.session_sequence IS 'Always NULL: it is recorded outside the session.';

CREATE TABLE exports (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    destination VARCHAR,
    profile VARCHAR,
    signal VARCHAR,
    through_segment_id VARCHAR,
    through_sequence BIGINT,
    items BIGINT,
    rejected BIGINT,
    complete BOOLEAN,
    at_ns BIGINT,
    partial_items BIGINT,
    session_sequence BIGINT
);
COMMENT ON TABLE exports IS 'One row for each step of an export after the fact: how far a session was sent to a destination, and what that did not take.';
COMMENT ON COLUMN exports.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN exports.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN exports.session_id IS 'The session that was sent.';
COMMENT ON COLUMN exports.destination IS 'The destination: host and port, with a digest of the path if there is one; or its configured name.';
COMMENT ON COLUMN exports.profile IS 'The language of names that was spoken, such as `both`.';
COMMENT ON COLUMN exports.signal IS '`traces`, `logs` or `metrics`.';
COMMENT ON COLUMN exports.through_segment_id IS 'The segment of the session that was sent so far.';
COMMENT ON COLUMN exports.through_sequence IS 'The number of the last record in that segment whose telemetry was sent.';
COMMENT ON COLUMN exports.items IS 'What was sent with this step: spans, log records or data points.';
COMMENT ON COLUMN exports.rejected IS 'What the destination did not take of the message that this step ended with, whichever of its sessions that was of; it is not sent again.';
COMMENT ON COLUMN exports.complete IS 'Whether the session has ended and all of it was sent.';
COMMENT ON COLUMN exports.at_ns IS 'When that was noted. [ns since 1970 UTC]';
COMMENT ON COLUMN exports.partial_items IS 'Items accepted of those that the next record completes, or of orphaned ones: 0 unless a step ended among them.';
COMMENT ON COLUMN exports.session_sequence IS 'Always NULL: it is recorded outside the session.';
