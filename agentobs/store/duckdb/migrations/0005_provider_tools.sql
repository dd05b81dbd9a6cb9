CREATE TABLE provider_tool_uses (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    attempt_id VARCHAR,
    tool_use_id VARCHAR,
    name VARCHAR,
    server VARCHAR,
    ordinal BIGINT,
    requested_ns BIGINT,
    is_timed BOOLEAN,
    input_bytes BIGINT,
    use BIGINT,
    max_uses BIGINT,
    max_result_tokens BIGINT,
    caller_id VARCHAR,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT,
    session_sequence BIGINT
);
COMMENT ON TABLE provider_tool_uses IS 'Tool calls of the model that the provider ran.';
COMMENT ON COLUMN provider_tool_uses.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN provider_tool_uses.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN provider_tool_uses.session_id IS 'The ID of the session.';
COMMENT ON COLUMN provider_tool_uses.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN provider_tool_uses.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN provider_tool_uses.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN provider_tool_uses.attempt_id IS 'The attempt whose response contains the call.';
COMMENT ON COLUMN provider_tool_uses.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN provider_tool_uses.name IS 'The name of the tool: a tool of the provider, a name that the request declares, or a digest.';
COMMENT ON COLUMN provider_tool_uses.server IS 'The name of the MCP server that has the tool, if the request declares it, otherwise its digest; NULL for a tool of the provider.';
COMMENT ON COLUMN provider_tool_uses.ordinal IS 'The position among the calls of the response that the provider runs, from 1.';
COMMENT ON COLUMN provider_tool_uses.requested_ns IS 'When the call appeared in the stream; when the response ended, if it was not streamed. [ns since 1970 UTC]';
COMMENT ON COLUMN provider_tool_uses.is_timed IS 'Whether requested_ns is the time of the call in the stream.';
COMMENT ON COLUMN provider_tool_uses.input_bytes IS 'Size of the input of the call. [bytes]';
COMMENT ON COLUMN provider_tool_uses.use IS 'How many times the response has called this tool, including this call. max_uses limits this number.';
COMMENT ON COLUMN provider_tool_uses.max_uses IS 'The maximum number of calls that the request declares; NULL without a limit.';
COMMENT ON COLUMN provider_tool_uses.max_result_tokens IS 'The maximum size of one result that the request declares: the output of an advisor, or a fetched page; NULL without a limit. [tokens]';
COMMENT ON COLUMN provider_tool_uses.caller_id IS 'The ID of the call that made this call, such as a code execution; NULL if the model made it.';
COMMENT ON COLUMN provider_tool_uses.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory`, `summary` or `side`.';
COMMENT ON COLUMN provider_tool_uses.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN provider_tool_uses.depth IS 'The depth in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN provider_tool_uses.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';

CREATE TABLE provider_tool_results (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    attempt_id VARCHAR,
    ordinal BIGINT,
    result_attempt_id VARCHAR,
    tool_use_id VARCHAR,
    type VARCHAR,
    result_ns BIGINT,
    duration_ns BIGINT,
    outcome VARCHAR,
    is_error BOOLEAN,
    error_code VARCHAR,
    result_bytes BIGINT,
    items BIGINT,
    return_code BIGINT,
    stop_reason VARCHAR,
    iteration BIGINT,
    by_client BOOLEAN,
    query_source VARCHAR,
    chain_id VARCHAR,
    depth BIGINT,
    session_sequence BIGINT
);
COMMENT ON TABLE provider_tool_results IS 'Results of tools that the provider ran.';
COMMENT ON COLUMN provider_tool_results.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN provider_tool_results.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN provider_tool_results.session_id IS 'The ID of the session.';
COMMENT ON COLUMN provider_tool_results.interaction_id IS 'The ID of the interaction; NULL outside of an interaction.';
COMMENT ON COLUMN provider_tool_results.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN provider_tool_results.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN provider_tool_results.attempt_id IS 'The attempt whose response contains the call, as in provider_tool_uses; NULL if that response was not recorded.';
COMMENT ON COLUMN provider_tool_results.ordinal IS 'The position of the call, as in provider_tool_uses; NULL if its response was not recorded.';
COMMENT ON COLUMN provider_tool_results.result_attempt_id IS 'The attempt whose response contains the result. It differs from attempt_id if the provider paused the turn.';
COMMENT ON COLUMN provider_tool_results.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN provider_tool_results.type IS 'The type of the block with the result, such as `web_search_tool_result`.';
COMMENT ON COLUMN provider_tool_results.result_ns IS 'When the result appeared in the stream; when the response ended, if it was not streamed. [ns since 1970 UTC]';
COMMENT ON COLUMN provider_tool_results.duration_ns IS 'Time from the call to its result in one stream; NULL if the response was not streamed, or if the call is in an earlier response. [ns]';
COMMENT ON COLUMN provider_tool_results.outcome IS '`executed`, or `failed` if the result is an error.';
COMMENT ON COLUMN provider_tool_results.is_error IS 'Whether the model got the result as an error.';
COMMENT ON COLUMN provider_tool_results.error_code IS 'The provider''s reason for the error, such as `max_uses_exceeded`; NULL if there is none.';
COMMENT ON COLUMN provider_tool_results.result_bytes IS 'Size of the result. [bytes]';
COMMENT ON COLUMN provider_tool_results.items IS 'The number of parts of the result, such as search results, files, found tools or texts; NULL if it has no parts.';
COMMENT ON COLUMN provider_tool_results.return_code IS 'The exit status of the program that a code execution ran; NULL for other tools.';
COMMENT ON COLUMN provider_tool_results.stop_reason IS 'Why the advisor stopped; `max_tokens` if its output was cut; NULL if unknown, and for other tools.';
COMMENT ON COLUMN provider_tool_results.iteration IS 'The row of usage of result_attempt_id that has the tokens of the advisor; NULL if unknown, and for other tools.';
COMMENT ON COLUMN provider_tool_results.by_client IS 'Whether the client sent the result, because it runs the tools of an agent of the provider in its own environment.';
COMMENT ON COLUMN provider_tool_results.query_source IS 'The purpose of the LLM request to which the record belongs: `main`, `sub_agent`, `compaction`, `hook`, `classifier`, `memory`, `summary` or `side`.';
COMMENT ON COLUMN provider_tool_results.chain_id IS 'The ID of the chain of requests (all requests of one turn) to which the record belongs; NULL if unknown.';
COMMENT ON COLUMN provider_tool_results.depth IS 'The depth in that chain, from 1; NULL if unknown.';
COMMENT ON COLUMN provider_tool_results.session_sequence IS 'The number of the record among the facts of the session, from 1; a forked process continues the count.';

COMMENT ON TABLE attempts IS 'HTTP requests to the provider, one row for each attempt; and requests that the provider itself sent to a model for a managed agent.';
COMMENT ON COLUMN attempts.origin IS '`live` (sent to the provider), `replayed` (answered from a recording by a fork, at no cost), or `managed`: the provider sent the request for a managed agent. Its times are those of the provider; its duration is 0 if its start was not seen, and its bytes are unknown.';
COMMENT ON COLUMN attempts.method IS 'The HTTP method; for a managed agent, that of the request that showed the events.';
COMMENT ON COLUMN usage.batch_result_id IS '`<batch ID>/<custom_id>` of a result of the batch API, or `<session ID>/<event ID>` of a request of a managed agent, else NULL. Such a row counts once, even if it was fetched several times.';
