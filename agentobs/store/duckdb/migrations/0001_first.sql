-- The first tables: one for each kind of fact, and four that the store keeps for itself.
--
-- The columns of a fact's table are the fields of its class in agentobs/records/facts.py, in the same
-- order, after the segment and the sequence number of the record. The comments here are the only place
-- that gives a column's meaning; the unit stands at the end in square brackets.
--
-- (segment_id, sequence) is unique in every fact table, but no index enforces it: an index over ten
-- million rows would cost more to keep than the rows. What makes any number of ingests count a record
-- once is `segments`: its watermark says up to where a segment was read, and it is published in the same
-- generation as the rows that were read.

CREATE TABLE meta (key VARCHAR, value VARCHAR);
COMMENT ON TABLE meta IS 'What this file is.';
COMMENT ON COLUMN meta.key IS '`application`, `format` or `views`.';
COMMENT ON COLUMN meta.value IS '`agentobs`; the number of the newest migration; the digest of the text that made the views.';

CREATE TABLE migrations (number BIGINT, name VARCHAR, applied_ns BIGINT);
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
    price_version VARCHAR
);
COMMENT ON TABLE prices IS 'What tokens cost: one row for each model and context that was used, period and size of the prompt. Exactly one row fits a call.';
COMMENT ON COLUMN prices.model IS 'The model as `usage` names it.';
COMMENT ON COLUMN prices.service_tier IS 'The service tier as `usage` names it, or NULL.';
COMMENT ON COLUMN prices.inference_geo IS 'The place of inference as `usage` names it, or NULL.';
COMMENT ON COLUMN prices.speed IS 'The speed as `usage` names it, or NULL.';
COMMENT ON COLUMN prices.valid_from_ns IS 'The first instant at which this price holds; 0 for ever before. [ns since 1970 UTC]';
COMMENT ON COLUMN prices.valid_to_ns IS 'The first instant at which it no longer holds; the largest BIGINT for ever after. [ns since 1970 UTC]';
COMMENT ON COLUMN prices.prompt_tokens_from IS 'The smallest prompt (input, cache reads and cache writes) that it holds for. [tokens]';
COMMENT ON COLUMN prices.prompt_tokens_to IS 'The smallest prompt that it no longer holds for; the largest BIGINT where there is none. [tokens]';
COMMENT ON COLUMN prices.input_usd_per_million IS 'Uncached input; NULL where the model is unknown. [USD per million tokens]';
COMMENT ON COLUMN prices.output_usd_per_million IS 'Output, reasoning included. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_read_usd_per_million IS 'Input read from the cache. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_write_5m_usd_per_million IS 'Input written to the cache for 5 minutes. [USD per million tokens]';
COMMENT ON COLUMN prices.cache_write_1h_usd_per_million IS 'Input written to the cache for 1 hour. [USD per million tokens]';
COMMENT ON COLUMN prices.web_search_usd_per_thousand IS 'Web searches that the provider ran. [USD per thousand requests]';
COMMENT ON COLUMN prices.certainty IS '`exact`; `estimated`: no price is published for this context, `note` says what was assumed; `unknown_model`: no price at all.';
COMMENT ON COLUMN prices.note IS 'What was added to the price list or assumed, or NULL.';
COMMENT ON COLUMN prices.price_version IS 'The version of genai-prices that was asked.';

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
    arguments_content VARCHAR
);
COMMENT ON TABLE session_starts IS 'Sessions that started.';
COMMENT ON COLUMN session_starts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN session_starts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN session_starts.session_id IS 'The session.';
COMMENT ON COLUMN session_starts.name IS 'What its author called it; a keyed digest where that is no label.';
COMMENT ON COLUMN session_starts.started_ns IS 'When it started. [ns since 1970 UTC]';
COMMENT ON COLUMN session_starts.entry IS 'The function that started it, as `module:name`, or NULL.';
COMMENT ON COLUMN session_starts.agentobs_version IS 'The version of agentobs that recorded it.';
COMMENT ON COLUMN session_starts.sdk_version IS 'The version of the provider''s SDK, or NULL.';
COMMENT ON COLUMN session_starts.python_version IS 'The version of the interpreter.';
COMMENT ON COLUMN session_starts.platform IS 'The operating system, such as `linux`.';
COMMENT ON COLUMN session_starts.tags IS 'Labels given by its author, such as the git commit.';
COMMENT ON COLUMN session_starts.arguments_content IS 'Content id of its name and the arguments of its entry.';

CREATE TABLE session_ends (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    ended_ns BIGINT,
    outcome VARCHAR,
    reason VARCHAR,
    signature VARCHAR,
    dropped BIGINT
);
COMMENT ON TABLE session_ends IS 'Sessions that ended.';
COMMENT ON COLUMN session_ends.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN session_ends.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN session_ends.session_id IS 'The session.';
COMMENT ON COLUMN session_ends.ended_ns IS 'When it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN session_ends.outcome IS '`completed`, `failed`, or `interrupted` (Ctrl-C or cancellation).';
COMMENT ON COLUMN session_ends.reason IS 'Why it failed: the class of an exception, the result of its last interaction, or a word of its author.';
COMMENT ON COLUMN session_ends.signature IS 'What tells one failure from another: its kind and where it came from. Equal failures have equal signatures.';
COMMENT ON COLUMN session_ends.dropped IS 'Records of the session that were not written. [records]';

CREATE TABLE interaction_starts (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    started_ns BIGINT
);
COMMENT ON TABLE interaction_starts IS 'Interactions that started: one user prompt to its final answer.';
COMMENT ON COLUMN interaction_starts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN interaction_starts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN interaction_starts.session_id IS 'The session.';
COMMENT ON COLUMN interaction_starts.interaction_id IS 'The interaction; also the id of its trace.';
COMMENT ON COLUMN interaction_starts.lane IS 'The lane that it runs in: `main`, or that of a sub-agent.';
COMMENT ON COLUMN interaction_starts.started_ns IS 'When the prompt came. [ns since 1970 UTC]';

CREATE TABLE interaction_ends (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    ended_ns BIGINT,
    result VARCHAR,
    is_error BOOLEAN
);
COMMENT ON TABLE interaction_ends IS 'Interactions that ended.';
COMMENT ON COLUMN interaction_ends.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN interaction_ends.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN interaction_ends.session_id IS 'The session.';
COMMENT ON COLUMN interaction_ends.interaction_id IS 'The interaction.';
COMMENT ON COLUMN interaction_ends.ended_ns IS 'When it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN interaction_ends.result IS 'How it ended, such as `success` or `interrupted`.';
COMMENT ON COLUMN interaction_ends.is_error IS 'Whether that is an error.';

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
    response_content VARCHAR
);
COMMENT ON TABLE attempts IS 'HTTP requests to the provider, each try of a call by itself.';
COMMENT ON COLUMN attempts.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN attempts.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN attempts.session_id IS 'The session.';
COMMENT ON COLUMN attempts.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN attempts.lane IS 'The lane in which it must recur in order: `main`, or that of a sub-agent.';
COMMENT ON COLUMN attempts.turn IS 'The turn within the lane, from 1; NULL where the endpoint makes no turns.';
COMMENT ON COLUMN attempts.llm_request_id IS 'The logical call that this is a try of.';
COMMENT ON COLUMN attempts.attempt_id IS 'This attempt.';
COMMENT ON COLUMN attempts.attempt IS 'Its number among the tries of the call, from 1.';
COMMENT ON COLUMN attempts.continues_attempt_id IS 'The attempt whose answer this request goes on from, or NULL.';
COMMENT ON COLUMN attempts.span_id IS 'The span that was open, or NULL.';
COMMENT ON COLUMN attempts.started_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN attempts.headers_ns IS 'When the head of the response came; NULL where none did. [ns after started_ns]';
COMMENT ON COLUMN attempts.first_chunk_ns IS 'When the first piece of its body came; NULL where none did. [ns after started_ns]';
COMMENT ON COLUMN attempts.duration_ns IS 'How long it took to the end of the answer. [ns]';
COMMENT ON COLUMN attempts.method IS 'The HTTP method.';
COMMENT ON COLUMN attempts.endpoint IS 'The path, without its query, each id in it replaced by `:id`.';
COMMENT ON COLUMN attempts.streamed IS 'Whether the answer was a stream of events.';
COMMENT ON COLUMN attempts.model_requested IS 'The model that the request names, or NULL.';
COMMENT ON COLUMN attempts.model IS 'The model that answered, or NULL.';
COMMENT ON COLUMN attempts.status IS 'The HTTP status; NULL where no response came.';
COMMENT ON COLUMN attempts.outcome IS '`ok`, `http_error`, `stream_error` (an error inside a stream), `cut` (the connection broke), `cancelled` (the client stopped) or `no_answer`.';
COMMENT ON COLUMN attempts.error_type IS 'The provider''s type of the error, or the class of the transport''s; NULL without an error.';
COMMENT ON COLUMN attempts.stop_reason IS 'Why the model stopped, or NULL.';
COMMENT ON COLUMN attempts.message_id IS 'The provider''s id of the message, or NULL.';
COMMENT ON COLUMN attempts.request_id IS 'The provider''s id of the request, or NULL.';
COMMENT ON COLUMN attempts.retry_after_ms IS 'How long the provider asked to wait before a retry, or NULL. [ms]';
COMMENT ON COLUMN attempts.message_count IS 'Messages in the request; NULL where it has no list of them.';
COMMENT ON COLUMN attempts.tool_use_count IS 'Tool calls that the answer asks for.';
COMMENT ON COLUMN attempts.request_bytes IS 'Size of the request body as it was sent. [bytes]';
COMMENT ON COLUMN attempts.response_bytes IS 'Size of the response body that arrived, content encoding undone. [bytes]';
COMMENT ON COLUMN attempts.chunk_count IS 'Pieces in which the body arrived.';
COMMENT ON COLUMN attempts.redactions IS 'Secrets that were taken out of the request body before it was written.';
COMMENT ON COLUMN attempts.request_content IS 'Content id of the request, or NULL.';
COMMENT ON COLUMN attempts.response_content IS 'Content id of the response, or NULL.';

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
    certainty VARCHAR
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
COMMENT ON COLUMN usage.reasoning_tokens IS 'The part of output spent on thinking; NULL where the provider does not say. [tokens]';
COMMENT ON COLUMN usage.cache_read_tokens IS 'Input read from the cache. [tokens]';
COMMENT ON COLUMN usage.cache_write_5m_tokens IS 'Input written to the cache for 5 minutes. [tokens]';
COMMENT ON COLUMN usage.cache_write_1h_tokens IS 'Input written to the cache for 1 hour. [tokens]';
COMMENT ON COLUMN usage.web_search_requests IS 'Web searches that the provider ran. [requests]';
COMMENT ON COLUMN usage.service_tier IS '`standard`, `priority` or `batch`, or NULL.';
COMMENT ON COLUMN usage.inference_geo IS 'Where inference ran, such as `global` or `us`, or NULL.';
COMMENT ON COLUMN usage.speed IS '`standard` or `fast`, or NULL.';
COMMENT ON COLUMN usage.certainty IS '`exact`, or `lower_bound` where a stream ended before it gave its last counts.';

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
    asked_ns BIGINT,
    input_bytes BIGINT
);
COMMENT ON TABLE tool_uses IS 'Tool calls that the model asked for.';
COMMENT ON COLUMN tool_uses.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN tool_uses.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN tool_uses.session_id IS 'The session.';
COMMENT ON COLUMN tool_uses.interaction_id IS 'The interaction, or NULL outside of one.';
COMMENT ON COLUMN tool_uses.lane IS 'The lane.';
COMMENT ON COLUMN tool_uses.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN tool_uses.attempt_id IS 'The attempt whose answer asks for it.';
COMMENT ON COLUMN tool_uses.tool_use_id IS 'The provider''s id of the call.';
COMMENT ON COLUMN tool_uses.name IS 'The tool.';
COMMENT ON COLUMN tool_uses.ordinal IS 'Its place among the calls of the answer, from 1.';
COMMENT ON COLUMN tool_uses.asked_ns IS 'When the answer that asks for it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_uses.input_bytes IS 'Size of its input. [bytes]';

CREATE TABLE tool_results (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    tool_use_id VARCHAR,
    started_ns BIGINT,
    duration_ns BIGINT,
    answered_ns BIGINT,
    source VARCHAR,
    outcome VARCHAR,
    is_error BOOLEAN,
    result_bytes BIGINT,
    content VARCHAR
);
COMMENT ON TABLE tool_results IS 'Results of tool calls: where our own loop ran them, or where a request carried them.';
COMMENT ON COLUMN tool_results.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN tool_results.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN tool_results.session_id IS 'The session.';
COMMENT ON COLUMN tool_results.tool_use_id IS 'The provider''s id of the call.';
COMMENT ON COLUMN tool_results.started_ns IS 'When the tool started; NULL where it was not ours to run. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_results.duration_ns IS 'How long it ran; NULL where it was not ours to run. [ns]';
COMMENT ON COLUMN tool_results.answered_ns IS 'When the result was there, or when the request that carries it was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN tool_results.source IS '`run`: our loop ran it; `wire`: it was read off a request.';
COMMENT ON COLUMN tool_results.outcome IS '`executed`, `failed`, `invalid` (the input did not fit), `unknown` (no such tool) or `timeout`.';
COMMENT ON COLUMN tool_results.is_error IS 'Whether the model was told that it is an error.';
COMMENT ON COLUMN tool_results.result_bytes IS 'Size of the result. [bytes]';
COMMENT ON COLUMN tool_results.content IS 'Content id of input and result; NULL where they stand in the requests alone.';

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
    numbers MAP(VARCHAR, DOUBLE)
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
    started_ns BIGINT
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

CREATE TABLE span_ends (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    span_id VARCHAR,
    ended_ns BIGINT,
    status VARCHAR,
    error_type VARCHAR
);
COMMENT ON TABLE span_ends IS 'Spans that ended.';
COMMENT ON COLUMN span_ends.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN span_ends.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN span_ends.session_id IS 'The session.';
COMMENT ON COLUMN span_ends.span_id IS 'The span.';
COMMENT ON COLUMN span_ends.ended_ns IS 'When it ended. [ns since 1970 UTC]';
COMMENT ON COLUMN span_ends.status IS '`ok`, `error` or `cancelled`.';
COMMENT ON COLUMN span_ends.error_type IS 'The class of the error, or the provider''s type of it; NULL without one.';
