-- The tables: one for each kind of fact, and four internal tables of the store.
--
-- The columns of a fact table are the segment and the sequence number of the record, followed by the fields of the
-- fact's class in agentobs/records/facts.py. Only the comments in this file describe the meaning of the columns; the
-- unit is at the end in square brackets. `session_sequence` orders the facts of a session across tables and segments.
--
-- (segment_id, sequence) is unique in every fact table, but no index enforces this, because an index over ten million
-- rows would cost more than the rows. The table `segments` ensures that each record is ingested only once: it contains
-- the position up to which a segment was read, and it is published in the same generation as the rows.
--
-- From version 0.1.0 on, released migrations are never edited; changes go into new migrations. If a migration adds a
-- column, its value for older records is the default of the field.

CREATE TABLE meta (
    key VARCHAR,
    value VARCHAR
);
COMMENT ON TABLE meta IS 'The identity and the format of this file.';
COMMENT ON COLUMN meta.key IS '`application`, `format` or `views`.';
COMMENT ON COLUMN meta.value IS 'The value: `agentobs`, the number of the newest migration, or a digest of the view definitions.';

CREATE TABLE migrations (
    number BIGINT,
    name VARCHAR,
    applied_ns BIGINT
);
COMMENT ON TABLE migrations IS 'One row for each migration that was applied to this file.';
COMMENT ON COLUMN migrations.number IS 'The number of the migration, from 1.';
COMMENT ON COLUMN migrations.name IS 'The file name of the migration.';
COMMENT ON COLUMN migrations.applied_ns IS 'When the migration was applied. [ns since 1970 UTC]';

CREATE TABLE segments (
    segment_id VARCHAR,
    facts_offset BIGINT,
    sequence BIGINT,
    state VARCHAR,
    damaged_records BIGINT,
    missing_records BIGINT,
    opened_ns BIGINT
);
COMMENT ON TABLE segments IS 'One row for each segment of the journal, with the position up to which the store has ingested it.';
COMMENT ON COLUMN segments.segment_id IS 'The ID of the segment; also the name of its two files.';
COMMENT ON COLUMN segments.facts_offset IS 'The number of bytes of its facts file that the store has ingested. [bytes]';
COMMENT ON COLUMN segments.sequence IS 'The sequence number of the last record that was ingested.';
COMMENT ON COLUMN segments.state IS '`open`: its process was still running; `sealed`: the process closed it; `dead`: its process ended without closing it.';
COMMENT ON COLUMN segments.damaged_records IS 'The number of sections of its facts file that could not be read. [records]';
COMMENT ON COLUMN segments.missing_records IS 'The number of sequence numbers without a readable record, including those of damaged records. [records]';
COMMENT ON COLUMN segments.opened_ns IS 'When the segment was created. [ns since 1970 UTC]';

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
COMMENT ON TABLE prices IS 'Token prices: one row for each model and context that was used, validity period and prompt size. Exactly one row matches a call.';
COMMENT ON COLUMN prices.model IS 'The model, as named in `usage`.';
COMMENT ON COLUMN prices.service_tier IS 'The service tier, as named in `usage`, or NULL.';
COMMENT ON COLUMN prices.inference_geo IS 'The place of inference, as named in `usage`, or NULL.';
COMMENT ON COLUMN prices.speed IS 'The speed, as named in `usage`, or NULL.';
COMMENT ON COLUMN prices.valid_from_ns IS 'The first time at which this price is valid; 0 if it has no start. [ns since 1970 UTC]';
COMMENT ON COLUMN prices.valid_to_ns IS 'The first time at which this price is no longer valid; the largest BIGINT if it has no end. [ns since 1970 UTC]';
COMMENT ON COLUMN prices.prompt_tokens_from IS 'The smallest prompt (input, cache reads and cache writes) to which this price applies. [tokens]';
COMMENT ON COLUMN prices.prompt_tokens_to IS 'The smallest prompt to which this price no longer applies; the largest BIGINT if there is no limit. [tokens]';
COMMENT ON COLUMN prices.input_usd_per_million IS 'The price of uncached input; NULL if the model is unknown. [USD per million tokens]';
COMMENT ON COLUMN prices.output_usd_per_million IS 'The price of output, including reasoning. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_read_usd_per_million IS 'The price of input that is read from the cache. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_write_5m_usd_per_million IS 'The price of input that is written to the cache for 5 minutes. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_write_1h_usd_per_million IS 'The price of input that is written to the cache for 1 hour. [USD per million tokens]';
COMMENT ON COLUMN prices.web_search_usd_per_thousand IS 'The price of web searches that the provider runs. [USD per thousand requests]';
COMMENT ON COLUMN prices.certainty IS '`exact`; `estimated`: no price is published for this context, and `note` contains the assumption; `unknown_model`: no price is known.';
COMMENT ON COLUMN prices.note IS 'An addition to the price list, or an assumption; NULL if there is none.';
COMMENT ON COLUMN prices.price_version IS 'The version of the prices: the version of genai-prices, the digest of the additions of agentobs, and the digest of the user''s own price file if there is one, joined by `+`.';
COMMENT ON COLUMN prices.canonical_model IS 'The canonical name of the model: the same for aliases, dated IDs and IDs of cloud platforms.';

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
COMMENT ON COLUMN session_starts.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN session_starts.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN session_starts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN session_starts.name IS 'The name given by the author; a keyed digest if it is not a label.';
COMMENT ON COLUMN session_starts.started_ns IS 'When the session started. [ns since 1970 UTC]';
COMMENT ON COLUMN session_starts.entry IS 'The function that started the session, as `module:name`, or NULL.';
COMMENT ON COLUMN session_starts.agentobs_version IS 'The version of agentobs that recorded the session.';
COMMENT ON COLUMN session_starts.sdk_version IS 'The version of the provider''s SDK, or NULL.';
COMMENT ON COLUMN session_starts.python_version IS 'The version of the Python interpreter.';
COMMENT ON COLUMN session_starts.platform IS 'The operating system, such as `linux`.';
COMMENT ON COLUMN session_starts.tags IS 'Labels set by the author, such as the git commit.';
COMMENT ON COLUMN session_starts.arguments_content IS 'Content ID of the name of the session and the arguments of its entry.';
COMMENT ON COLUMN session_starts.continues_session_id IS 'The full ID of the earlier session that this session continues or forks; NULL if there is none.';
COMMENT ON COLUMN session_starts.relation IS '`resume`: the session continues the same conversation; `fork`: it is a new conversation that starts like the earlier one; NULL without an earlier session.';
COMMENT ON COLUMN session_starts.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN session_starts.content IS 'Where content is written: `off`: nowhere; `vault`: to the content files; `export`: also to the backends.';
COMMENT ON COLUMN session_starts.options IS 'A digest of the options of the process; equal options have equal digests.';
COMMENT ON COLUMN session_starts.source IS '`recorded`: the session was recorded while it ran; otherwise the program from whose log it was imported, such as `claude-code`.';
COMMENT ON COLUMN session_starts.live_exports IS 'The destinations of live telemetry, each with the profile of its backend; NULL if there were none.';
COMMENT ON COLUMN session_starts.forked_turn IS 'For a session of `agentobs fork`, the turn of the last replayed response in the parent; else NULL.';

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
COMMENT ON COLUMN session_ends.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN session_ends.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN session_ends.session_id IS 'The ID of the session.';
COMMENT ON COLUMN session_ends.ended_ns IS 'When the session ended. [ns since 1970 UTC]';
COMMENT ON COLUMN session_ends.outcome IS '`completed`, `failed`, or `interrupted` (Ctrl-C or cancellation).';
COMMENT ON COLUMN session_ends.reason IS 'Why the session failed: the class of an exception, the result of its last interaction, or the text passed to `agentobs.fail()`; a keyed digest if the reason is not a label.';
COMMENT ON COLUMN session_ends.signature IS 'Identifies a kind of failure by its type and origin. Equal failures have equal signatures.';
COMMENT ON COLUMN session_ends.dropped IS 'The number of records of the session that were not written. [records]';
COMMENT ON COLUMN session_ends.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN session_ends.emitted IS 'The number of records of the session that its process had emitted, including this record. [records]';
COMMENT ON COLUMN session_ends.written IS 'The number of emitted records that were written; the others are in `gaps`. [records]';
COMMENT ON COLUMN session_ends.end_content IS 'Content ID of the reason as text and of the result of the function; NULL if there is neither, or if content is off.';
COMMENT ON COLUMN session_ends.result_digest IS 'Keyed digest of the returned value of the function, equal for equal values; NULL if no value was recorded.';
COMMENT ON COLUMN session_ends.result_type IS 'The class of the returned value, as `module:name`, or NULL.';

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
COMMENT ON TABLE interaction_starts IS 'Interactions that started. An interaction is everything from one user prompt to its final response.';
COMMENT ON COLUMN interaction_starts.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN interaction_starts.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN interaction_starts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN interaction_starts.interaction_id IS 'The ID of the interaction; also the ID of its trace.';
COMMENT ON COLUMN interaction_starts.lane IS 'The lane of the interaction: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN interaction_starts.started_ns IS 'When the prompt was received. [ns since 1970 UTC]';
COMMENT ON COLUMN interaction_starts.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN interaction_starts.query_source IS 'The purpose of the interaction: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';

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
COMMENT ON COLUMN interaction_ends.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN interaction_ends.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN interaction_ends.session_id IS 'The ID of the session.';
COMMENT ON COLUMN interaction_ends.interaction_id IS 'The ID of the interaction.';
COMMENT ON COLUMN interaction_ends.ended_ns IS 'When the interaction ended. [ns since 1970 UTC]';
COMMENT ON COLUMN interaction_ends.result IS 'How the interaction ended, such as `success` or `interrupted`.';
COMMENT ON COLUMN interaction_ends.is_error IS 'Whether this result is an error.';
COMMENT ON COLUMN interaction_ends.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN interaction_ends.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN interaction_ends.query_source IS 'The purpose of the interaction: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';

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
    makes_turns BOOLEAN,
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
COMMENT ON TABLE attempts IS 'HTTP requests to the provider, one row for each attempt.';
COMMENT ON COLUMN attempts.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN attempts.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN attempts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN attempts.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN attempts.lane IS 'The lane: `main`, or the lane of a sub-agent. The requests of a lane have the same order in every replay.';
COMMENT ON COLUMN attempts.turn IS 'The turn within the lane, from 1; NULL for endpoints without turns.';
COMMENT ON COLUMN attempts.llm_request_id IS 'The LLM request that this attempt belongs to.';
COMMENT ON COLUMN attempts.attempt_id IS 'The ID of this attempt.';
COMMENT ON COLUMN attempts.attempt IS 'The number of the attempt within the LLM request, from 1.';
COMMENT ON COLUMN attempts.continues_attempt_id IS 'The attempt whose response this request continues, or NULL.';
COMMENT ON COLUMN attempts.span_id IS 'The span that was current, or NULL.';
COMMENT ON COLUMN attempts.started_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN attempts.headers_ns IS 'When the response headers arrived; NULL without a response. [ns after started_ns]';
COMMENT ON COLUMN attempts.first_chunk_ns IS 'When the first chunk of the response body arrived; NULL if none arrived. [ns after started_ns]';
COMMENT ON COLUMN attempts.duration_ns IS 'Time from the request to the end of the response. [ns]';
COMMENT ON COLUMN attempts.method IS 'The HTTP method.';
COMMENT ON COLUMN attempts.endpoint IS 'The path of the request without its query; each ID in the path is replaced by `:id`.';
COMMENT ON COLUMN attempts.makes_turns IS 'Whether the request is a turn of a conversation, as the provider''s dialect defines it; false for token counts, batches and files, for example.';
COMMENT ON COLUMN attempts.streamed IS 'Whether the response was a stream of events.';
COMMENT ON COLUMN attempts.model_requested IS 'The model in the request, or NULL.';
COMMENT ON COLUMN attempts.model IS 'The model in the response, or NULL.';
COMMENT ON COLUMN attempts.status IS 'The HTTP status; NULL without a response.';
COMMENT ON COLUMN attempts.outcome IS 'How the attempt ended: `ok`; `http_error`; `stream_error`: an error within the stream; `cut`: the connection broke; `cancelled`: the client stopped reading; `no_response`; `crashed`: the end was not recorded because the process died or the disk failed, and the rest of the row is the last known state.';
COMMENT ON COLUMN attempts.error_type IS 'The provider''s error type, or the class of the transport error; NULL without an error.';
COMMENT ON COLUMN attempts.stop_reason IS 'Why the model stopped, or NULL.';
COMMENT ON COLUMN attempts.message_id IS 'The provider''s ID of the message, or NULL.';
COMMENT ON COLUMN attempts.request_id IS 'The provider''s ID of the request, or NULL.';
COMMENT ON COLUMN attempts.retry_after_ms IS 'The delay before a retry that the provider requested, or NULL. [ms]';
COMMENT ON COLUMN attempts.message_count IS 'The number of messages in the request; NULL if the request has no list of messages.';
COMMENT ON COLUMN attempts.tool_use_count IS 'The number of tool calls in the response.';
COMMENT ON COLUMN attempts.request_bytes IS 'Size of the request body as it was sent. [bytes]';
COMMENT ON COLUMN attempts.response_bytes IS 'Size of the response body, after decoding. [bytes]';
COMMENT ON COLUMN attempts.chunk_count IS 'The number of chunks in which the body arrived.';
COMMENT ON COLUMN attempts.redactions IS 'The number of secrets that were redacted in the request body.';
COMMENT ON COLUMN attempts.request_content IS 'Content ID of the request, or NULL.';
COMMENT ON COLUMN attempts.response_content IS 'Content ID of the response, or NULL.';
COMMENT ON COLUMN attempts.query_source IS 'The purpose of the request: `main` or `sub_agent`, or for an auxiliary request `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN attempts.chain_id IS 'The ID of the chain: all requests of one turn, including auxiliary requests (a summary, a hook); NULL if unknown.';
COMMENT ON COLUMN attempts.depth IS 'The depth of the LLM request in its chain, from 1. A request that serves another request is one level deeper.';
COMMENT ON COLUMN attempts.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN attempts.claims_success IS 'Whether the text of the response claims success and mentions no failure. Only set if the request contains the result of a failed call and the response has no tool calls; else NULL.';
COMMENT ON COLUMN attempts.adopted_span IS 'The OpenTelemetry span that the SDK or the program created for the call, as a W3C `traceparent`; NULL if there was none.';
COMMENT ON COLUMN attempts.origin IS '`live`: the attempt was sent to the provider; `replayed`: a fork answered it from a recording, and its usage is not billed.';

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
COMMENT ON TABLE usage IS 'Tokens as counted by the provider, in categories that do not overlap. A response with iterations has one row for each iteration and one for the top level.';
COMMENT ON COLUMN usage.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN usage.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN usage.session_id IS 'The ID of the session.';
COMMENT ON COLUMN usage.attempt_id IS 'The attempt that used the tokens.';
COMMENT ON COLUMN usage.at_ns IS 'When the attempt was sent; this time determines the price. [ns since 1970 UTC]';
COMMENT ON COLUMN usage.iteration IS '0 for the top level; the number of the iteration, from 1, otherwise.';
COMMENT ON COLUMN usage.kind IS 'What the model generated: `message`, `compaction`, `advisor_message`, `fallback_message` and others.';
COMMENT ON COLUMN usage.billed IS 'Whether the provider bills this row. If there are iterations, the iterations are billed, not the top level.';
COMMENT ON COLUMN usage.model IS 'The billed model.';
COMMENT ON COLUMN usage.input_tokens IS 'Input tokens that were neither read from nor written to the cache. [tokens]';
COMMENT ON COLUMN usage.output_tokens IS 'Output tokens, including reasoning. [tokens]';
COMMENT ON COLUMN usage.reasoning_tokens IS 'The part of the output tokens that was spent on thinking; NULL if the provider does not report it. [tokens]';
COMMENT ON COLUMN usage.cache_read_tokens IS 'Input tokens that were read from the cache. [tokens]';
COMMENT ON COLUMN usage.cache_write_5m_tokens IS 'Input tokens that were written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN usage.cache_write_1h_tokens IS 'Input tokens that were written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN usage.web_search_requests IS 'The number of web searches that the provider ran. [requests]';
COMMENT ON COLUMN usage.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN usage.inference_geo IS 'Where inference ran, such as `global` or `us`, or NULL.';
COMMENT ON COLUMN usage.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN usage.certainty IS '`exact`; `lower_bound`: the stream ended before its final counts; `estimated`: a count was not a valid number, see `note`.';
COMMENT ON COLUMN usage.web_fetch_requests IS 'The number of pages that the provider fetched; they cost only their tokens. [requests]';
COMMENT ON COLUMN usage.code_execution_requests IS 'The number of code executions by the provider. Their time is billed beyond a free allowance, which the usage does not report. [requests]';
COMMENT ON COLUMN usage.server_requests IS 'The number of other requests that the provider ran, by the provider''s name for the kind; NULL if there were none. agentobs has no price for them. [requests]';
COMMENT ON COLUMN usage.other_counts IS 'Counts that this version of agentobs does not know, by name; NULL if there are none. They are not included in the cost.';
COMMENT ON COLUMN usage.note IS 'Why the counts are an estimate: `<count>:<reason>`, several joined by `/`; an invalid count is recorded as 0. NULL if all counts are valid.';
COMMENT ON COLUMN usage.batch_result_id IS '`<batch ID>/<custom_id>` of a result of the batch API, else NULL. Such a result counts once, even if it was fetched several times.';
COMMENT ON COLUMN usage.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';

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
COMMENT ON COLUMN tool_uses.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN tool_uses.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN tool_uses.session_id IS 'The ID of the session.';
COMMENT ON COLUMN tool_uses.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN tool_uses.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN tool_uses.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN tool_uses.attempt_id IS 'The attempt whose response contains the call.';
COMMENT ON COLUMN tool_uses.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN tool_uses.name IS 'The name of the tool.';
COMMENT ON COLUMN tool_uses.ordinal IS 'The position of the call in the response, from 1.';
COMMENT ON COLUMN tool_uses.requested_ns IS 'When the response that contains the call ended. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_uses.input_bytes IS 'Size of the input of the call. [bytes]';
COMMENT ON COLUMN tool_uses.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN tool_uses.input_similarity IS 'A keyed 64-bit similarity hash of the input. The distance bit_count(xor(a, b)) is small for similar inputs and about 32 for unrelated inputs.';
COMMENT ON COLUMN tool_uses.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN tool_uses.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN tool_uses.depth IS 'The depth in that chain, from 1; NULL if unknown.';

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
COMMENT ON TABLE tool_results IS 'Results of tool calls, from the agentobs loop or from a request that contains them.';
COMMENT ON COLUMN tool_results.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN tool_results.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN tool_results.session_id IS 'The ID of the session.';
COMMENT ON COLUMN tool_results.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN tool_results.started_ns IS 'When the tool started; NULL if agentobs did not run it. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_results.duration_ns IS 'How long the tool ran; NULL if agentobs did not run it. [ns]';
COMMENT ON COLUMN tool_results.result_ns IS 'When the result was available, or when the request that contains it was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_results.source IS '`run`: the agentobs loop ran the tool; `wire`: the result was derived from a request.';
COMMENT ON COLUMN tool_results.outcome IS 'The outcome. If the tool ran: `executed`, `failed` or `timeout`. `aborted`: the call was stopped, or never started. If a hook answered instead of the tool: `answered`. If the loop returned an error instead of running the tool: `invalid` (the input is invalid), `unknown` (no such tool), `denied` (no permission), `blocked` (a hook vetoed the call), `unavailable` (the tool was withdrawn, or the breaker of its service was open), `skipped` (a message arrived first), `deduplicated` (ID and input were used before). Later changes of the result by hooks are in events of kind `rewritten`.';
COMMENT ON COLUMN tool_results.is_error IS 'Whether the model got the result as an error.';
COMMENT ON COLUMN tool_results.result_bytes IS 'Size of the result before hooks changed it for the model. [bytes]';
COMMENT ON COLUMN tool_results.content IS 'Content ID of input and result; NULL if only the requests contain them.';
COMMENT ON COLUMN tool_results.attempts IS 'The number of executions; above 1 only for tools that allow retries, and 1 if agentobs did not run the tool.';
COMMENT ON COLUMN tool_results.lane IS 'The lane of the call: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN tool_results.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN tool_results.text_characters IS 'The number of text characters of the result; images and documents count as 0. [characters]';
COMMENT ON COLUMN tool_results.error_kind IS 'The kind of error, derived from the error text in requests: `schema`: the input was invalid; `denied`: the call was not permitted; `semantic`: any other error. NULL otherwise; for calls of the agentobs loop, see the outcome.';
COMMENT ON COLUMN tool_results.span_id IS 'The ID of the call''s span. NULL if the row was derived from requests.';
COMMENT ON COLUMN tool_results.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN tool_results.turn IS 'The turn of the call within the lane, from 1.';
COMMENT ON COLUMN tool_results.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN tool_results.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN tool_results.depth IS 'The depth in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN tool_results.tool IS 'The canonical name of the tool; the model may have used a former name. NULL if there is no such tool, or if the row was derived from requests.';
COMMENT ON COLUMN tool_results.requested_bytes IS 'Size of the input that the model sent. NULL if the row was derived from requests. [bytes]';
COMMENT ON COLUMN tool_results.executed_bytes IS 'Size of the input that the tool got, after changes by hooks and type conversion. NULL if the tool did not run, or if the row was derived from requests. [bytes]';
COMMENT ON COLUMN tool_results.coerced IS 'The number of arguments whose type was converted. NULL if the row was derived from requests.';
COMMENT ON COLUMN tool_results.attempt_id IS 'The attempt whose response contains the call. NULL if the result was available before the response ended; `answered_calls` also has the attempt of such calls.';
COMMENT ON COLUMN tool_results.ordinal IS 'The position of the call in the response, from 1; NULL if attempt_id is NULL.';

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
COMMENT ON TABLE events IS 'Events of kinds that have no table of their own.';
COMMENT ON COLUMN events.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN events.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN events.session_id IS 'The ID of the session.';
COMMENT ON COLUMN events.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN events.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN events.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN events.at_ns IS 'When the event happened. [ns since 1970 UTC]';
COMMENT ON COLUMN events.kind IS 'The kind of event; docs/events.md describes each kind.';
COMMENT ON COLUMN events.label IS 'The label of the event; its meaning depends on the kind; NULL if there is none.';
COMMENT ON COLUMN events.numbers IS 'The numbers of the event, by name; the suffix of the name is the unit.';
COMMENT ON COLUMN events.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN events.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN events.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN events.depth IS 'The depth in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN events.labels IS 'Additional labels, by name; NULL if there are none.';
COMMENT ON COLUMN events.rate IS 'The sampling rate of the kind, above 0 and up to 1: each event represents 1/rate events.';

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
COMMENT ON COLUMN span_starts.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN span_starts.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN span_starts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN span_starts.trace_id IS 'The ID of the interaction, or of the session outside of an interaction.';
COMMENT ON COLUMN span_starts.span_id IS 'The ID of the span.';
COMMENT ON COLUMN span_starts.parent_span_id IS 'The span in which this span was opened, or NULL.';
COMMENT ON COLUMN span_starts.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN span_starts.name IS 'The kind of operation, such as `llm_request`.';
COMMENT ON COLUMN span_starts.label IS 'The subject, such as the model or the tool, or NULL.';
COMMENT ON COLUMN span_starts.started_ns IS 'When the span started. [ns since 1970 UTC]';
COMMENT ON COLUMN span_starts.linked_span_id IS 'If this span outlives the span that started it: the span of the other trace that started it; else NULL.';
COMMENT ON COLUMN span_starts.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN span_starts.remote_parent IS 'The W3C `traceparent` with which another program started this session; NULL if there was none, and for spans with a parent.';
COMMENT ON COLUMN span_starts.numbers IS 'Numbers set by the author, by name; NULL if there are none.';
COMMENT ON COLUMN span_starts.labels IS 'Labels set by the author, by name; NULL if there are none.';
COMMENT ON COLUMN span_starts.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN span_starts.turn IS 'The turn within the lane, from 1; NULL outside of a turn.';
COMMENT ON COLUMN span_starts.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN span_starts.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN span_starts.depth IS 'The depth in that chain, from 1; NULL if unknown.';

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
COMMENT ON COLUMN span_ends.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN span_ends.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN span_ends.session_id IS 'The ID of the session.';
COMMENT ON COLUMN span_ends.span_id IS 'The ID of the span.';
COMMENT ON COLUMN span_ends.ended_ns IS 'When the span ended. [ns since 1970 UTC]';
COMMENT ON COLUMN span_ends.status IS '`ok`, `error` or `cancelled`; `orphaned`: the program did not end it, so agentobs did.';
COMMENT ON COLUMN span_ends.error_type IS 'The class of the error, or the provider''s error type; NULL without an error.';
COMMENT ON COLUMN span_ends.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN span_ends.last_activity_ns IS 'For an orphaned span, the time of its last known activity; else NULL. [ns since 1970 UTC]';
COMMENT ON COLUMN span_ends.late IS 'Whether the span had been ended as orphaned before, and this is its real end.';

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
COMMENT ON TABLE permissions IS 'Permission decisions on tool calls.';
COMMENT ON COLUMN permissions.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN permissions.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN permissions.session_id IS 'The ID of the session.';
COMMENT ON COLUMN permissions.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN permissions.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN permissions.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN permissions.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN permissions.tool IS 'The canonical name of the tool.';
COMMENT ON COLUMN permissions.at_ns IS 'When the decision was made. [ns since 1970 UTC]';
COMMENT ON COLUMN permissions.behavior IS '`allow` or `deny`.';
COMMENT ON COLUMN permissions.reason_type IS 'What made the decision: `rule`, `mode`, `safety_check`, `hook`, `classifier` or `person`.';
COMMENT ON COLUMN permissions.source IS 'The source of the rule: `policy`, `project`, `local`, `user`, `command_line` or `session`; NULL if no rule made the decision.';
COMMENT ON COLUMN permissions.resolver IS 'Who or what answered: `rule`, `mode`, `safety_check`, `hook`, `classifier`, `person`, or `unattended` if nobody could answer.';
COMMENT ON COLUMN permissions.rule IS 'The rule that made the decision, or a keyed digest if the rule is not a label; NULL if no rule made it.';
COMMENT ON COLUMN permissions.approval_requested IS 'Whether the loop requested an approval, for example from a person.';
COMMENT ON COLUMN permissions.approval_wait_ns IS 'The duration of the approval wait; 0 if no approval was requested. [ns]';
COMMENT ON COLUMN permissions.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN permissions.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN permissions.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN permissions.depth IS 'The depth in that chain, from 1; NULL if unknown.';

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
COMMENT ON TABLE world_answers IS 'External inputs of the agent loop, except responses of the model and results of tools.';
COMMENT ON COLUMN world_answers.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN world_answers.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN world_answers.session_id IS 'The ID of the session.';
COMMENT ON COLUMN world_answers.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN world_answers.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN world_answers.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN world_answers.kind IS 'About a call: `consent` (approval by a person), `check` (the tool checked its input), `path` (links were resolved). Inputs from outside: `steering`, `follow_up`, `tool_set`, `hook`, `section` (of the system prompt), `memory`, `conversation` (an earlier session), `keep` (where a long result is stored), `refresh` (of credentials), `spent_today`. Inputs that depend on order or time: `limit` (of a budget), `background` (agents that had ended), `elapsed`. `compacted`: the user compacted the conversation. `abort`: the run was aborted.';
COMMENT ON COLUMN world_answers.key IS 'Identifies the input among the inputs of its kind in its lane, such as the ID of a tool call, or the point at which the run was aborted.';
COMMENT ON COLUMN world_answers.started_ns IS 'When the input was requested. [ns since 1970 UTC]';
COMMENT ON COLUMN world_answers.duration_ns IS 'How long the answer took. [ns]';
COMMENT ON COLUMN world_answers.answer_bytes IS 'Size of the answer. [bytes]';
COMMENT ON COLUMN world_answers.content IS 'Content ID of question and answer.';
COMMENT ON COLUMN world_answers.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';
COMMENT ON COLUMN world_answers.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory` or `summary`.';
COMMENT ON COLUMN world_answers.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN world_answers.depth IS 'The depth in that chain, from 1; NULL if unknown.';

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
COMMENT ON TABLE prefixes IS 'Requests whose prompt is not just an earlier prompt plus new messages, and requests for which the provider reports a cache miss.';
COMMENT ON COLUMN prefixes.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN prefixes.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN prefixes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN prefixes.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN prefixes.compared_attempt_id IS 'The earlier attempt with which the prompt was compared, or NULL.';
COMMENT ON COLUMN prefixes.changed IS 'The first zone that changed, in the order of the prompt: `betas`, `model`, `tools`, `system`, `parameters` (tool choice, thinking), `system_dynamic` (after the first cache breakpoint) or `messages`; NULL if no zone changed. Cache breakpoints themselves are ignored.';
COMMENT ON COLUMN prefixes.changed_message IS 'The first message that changed, from 1; NULL unless `changed` is `messages`.';
COMMENT ON COLUMN prefixes.miss_reason IS 'The type of the provider''s diagnostics.cache_miss_reason, such as `tools_changed`, or NULL.';
COMMENT ON COLUMN prefixes.missed_tokens IS 'Estimated input tokens that would have been read from the cache, as reported by the provider; NULL if it does not report them. [tokens]';
COMMENT ON COLUMN prefixes.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';

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
COMMENT ON TABLE zones IS 'The zones of each prompt as keyed digests, without cache breakpoints. Equal digests mean equal content; digests can only be compared within one home.';
COMMENT ON COLUMN zones.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN zones.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN zones.session_id IS 'The ID of the session.';
COMMENT ON COLUMN zones.attempt_id IS 'The ID of the attempt.';
COMMENT ON COLUMN zones.compared_attempt_id IS 'The earlier attempt whose prompt this prompt continues, or the attempt with the most similar prompt; NULL at the start of a conversation.';
COMMENT ON COLUMN zones.betas IS 'Digest of the `anthropic-beta` header; NULL without this header.';
COMMENT ON COLUMN zones.model IS 'Digest of the model and its speed.';
COMMENT ON COLUMN zones.tools IS 'Digest of the tools; NULL without tools.';
COMMENT ON COLUMN zones.system IS 'Digest of the system prompt up to its first cache breakpoint, or of the complete system prompt if it has none; NULL without a system prompt.';
COMMENT ON COLUMN zones.parameters IS 'Digest of tool choice and thinking; NULL if both are missing.';
COMMENT ON COLUMN zones.system_dynamic IS 'Digest of the system prompt after its first cache breakpoint; NULL if there is nothing after it.';
COMMENT ON COLUMN zones.messages IS 'Digest of all messages; NULL if the recorder no longer had the first messages.';
COMMENT ON COLUMN zones.repeated_messages IS 'The number of messages in the earlier prompt; NULL without an earlier prompt. [messages]';
COMMENT ON COLUMN zones.repeated IS 'Digest of the first repeated_messages messages of this prompt. It equals `messages` of the earlier prompt if this prompt continues the earlier prompt. NULL if this prompt has fewer messages.';
COMMENT ON COLUMN zones.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';

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
COMMENT ON TABLE gaps IS 'Records that were not written: one row for each session, kind and reason, recorded as soon as writing is possible again.';
COMMENT ON COLUMN gaps.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN gaps.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN gaps.session_id IS 'The ID of the session; `others` if too many sessions were open to count them separately.';
COMMENT ON COLUMN gaps.at_ns IS 'When the gap was recorded. [ns since 1970 UTC]';
COMMENT ON COLUMN gaps.kind IS 'The table in which rows are missing. For an exchange, the rows in other tables are missing, too.';
COMMENT ON COLUMN gaps.reason IS 'Why the records were not written: the error of the operating system (`ENOSPC`, `EIO` ...); `stopped`: the recording of the session had ended because of such an error; `deleted`: the records were written, but the segment was deleted; `queue_full`: records arrived faster than they could be written; `closed`: records arrived after the end of the recording; `no_thread`: no thread could be started; else the class of an internal error.';
COMMENT ON COLUMN gaps.records IS 'The number of records. [records]';
COMMENT ON COLUMN gaps.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';

CREATE TABLE prunings (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    pruned_ns BIGINT,
    scope VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE prunings IS 'Sessions that were pruned, either completely or only their content.';
COMMENT ON COLUMN prunings.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN prunings.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN prunings.session_id IS 'The ID of the session.';
COMMENT ON COLUMN prunings.pruned_ns IS 'When the session was pruned. [ns since 1970 UTC]';
COMMENT ON COLUMN prunings.scope IS 'What was deleted: `content`: prompts, responses and results; `all`: also the facts.';
COMMENT ON COLUMN prunings.session_sequence IS 'Always NULL, because the record is written outside the session.';

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
COMMENT ON TABLE exports IS 'One row for each step of a later export: up to which record a session was sent to a destination, and what the destination rejected.';
COMMENT ON COLUMN exports.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN exports.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN exports.session_id IS 'The ID of the session that was sent.';
COMMENT ON COLUMN exports.destination IS 'The destination: host and port, with a digest of the path if there is one; or its configured name.';
COMMENT ON COLUMN exports.profile IS 'The profile of the export, such as `both`.';
COMMENT ON COLUMN exports.signal IS '`traces`, `logs` or `metrics`.';
COMMENT ON COLUMN exports.through_segment_id IS 'The segment of the session up to which data was sent.';
COMMENT ON COLUMN exports.through_sequence IS 'The number of the last record in that segment whose telemetry was sent.';
COMMENT ON COLUMN exports.items IS 'The number of spans, log records or data points that were sent in this step.';
COMMENT ON COLUMN exports.rejected IS 'The number of items that the destination rejected in the last message of this step, from any session in that message; they are not sent again.';
COMMENT ON COLUMN exports.complete IS 'Whether the session has ended and was sent completely.';
COMMENT ON COLUMN exports.at_ns IS 'When the step was recorded. [ns since 1970 UTC]';
COMMENT ON COLUMN exports.partial_items IS 'If the step ended among the items of one record, or among the items of orphaned spans, the number of these items that were accepted; else 0.';
COMMENT ON COLUMN exports.session_sequence IS 'Always NULL, because the record is written outside the session.';
