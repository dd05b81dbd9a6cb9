CREATE TABLE command_runs (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    command_id VARCHAR,
    parent_command_id VARCHAR,
    span_id VARCHAR,
    program VARCHAR,
    source VARCHAR,
    started_ns BIGINT,
    ended_ns BIGINT,
    duration_ns BIGINT,
    outcome VARCHAR,
    exit_code BIGINT,
    signal VARCHAR,
    argument_count BIGINT,
    argument_bytes BIGINT,
    stdin VARCHAR,
    stdout VARCHAR,
    stderr VARCHAR,
    is_merged BOOLEAN,
    stdout_bytes BIGINT,
    stderr_bytes BIGINT,
    content VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE command_runs IS 'Commands that were observed. The view commands adds the tool call of each.';
COMMENT ON COLUMN command_runs.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN command_runs.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN command_runs.session_id IS 'The ID of the session.';
COMMENT ON COLUMN command_runs.interaction_id IS 'The interaction in which the program of the session ran the command; NULL for the commands of other programs.';
COMMENT ON COLUMN command_runs.lane IS 'The lane of the caller, as interaction_id.';
COMMENT ON COLUMN command_runs.turn IS 'The turn of the caller within the lane, as interaction_id.';
COMMENT ON COLUMN command_runs.command_id IS 'The ID of the command.';
COMMENT ON COLUMN command_runs.parent_command_id IS 'The observed command that ran this command; NULL if there is none, or if it is unknown.';
COMMENT ON COLUMN command_runs.span_id IS 'The span in which the program of the session ran the command, or NULL.';
COMMENT ON COLUMN command_runs.program IS 'The name of the program, such as `bash`; a keyed digest if neither agentobs nor the user has declared it as observed.';
COMMENT ON COLUMN command_runs.source IS '`shim`: a shim in PATH observed it; `process`: the program of the session ran it with subprocess or asyncio.';
COMMENT ON COLUMN command_runs.started_ns IS 'When it started. [ns since 1970 UTC]';
COMMENT ON COLUMN command_runs.ended_ns IS 'When it ended; NULL if that is unknown. [ns since 1970 UTC]';
COMMENT ON COLUMN command_runs.duration_ns IS 'How long it ran, by a clock that does not jump; NULL if unknown. [ns]';
COMMENT ON COLUMN command_runs.outcome IS '`exited`; `signaled`: a signal ended it; `running`: it still ran when the observation ended; `lost`: the shim was killed before it ended; `not_started`: the program could not be started.';
COMMENT ON COLUMN command_runs.exit_code IS 'Its exit code; NULL if it has none.';
COMMENT ON COLUMN command_runs.signal IS 'The signal that ended it, such as `SIGTERM`, or NULL.';
COMMENT ON COLUMN command_runs.argument_count IS 'The number of arguments, without the name of the program.';
COMMENT ON COLUMN command_runs.argument_bytes IS 'The total size of the arguments, without the name of the program. [bytes]';
COMMENT ON COLUMN command_runs.stdin IS 'What standard input was: `pipe`, `socket`, `file`, `terminal`, `device` or `closed`; for `process` also `captured` and `inherited`; NULL if unknown.';
COMMENT ON COLUMN command_runs.stdout IS 'What standard output was, as stdin.';
COMMENT ON COLUMN command_runs.stderr IS 'What standard error was, as stdin.';
COMMENT ON COLUMN command_runs.is_merged IS 'Whether standard output and standard error were the same pipe or file, so that stdout_bytes contains both.';
COMMENT ON COLUMN command_runs.stdout_bytes IS 'What the command wrote to standard output until it ended; NULL if unknown, as for a terminal. [bytes]';
COMMENT ON COLUMN command_runs.stderr_bytes IS 'What the command wrote to standard error until it ended; NULL if unknown, as for a terminal. [bytes]';
COMMENT ON COLUMN command_runs.content IS 'The content ID of arguments, working directory and streams; NULL if the session records no content.';
COMMENT ON COLUMN command_runs.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

CREATE TABLE mcp_requests (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    call_id VARCHAR,
    span_id VARCHAR,
    server VARCHAR,
    transport VARCHAR,
    sender VARCHAR,
    method VARCHAR,
    tool VARCHAR,
    started_ns BIGINT,
    ended_ns BIGINT,
    duration_ns BIGINT,
    outcome VARCHAR,
    error_code BIGINT,
    request_bytes BIGINT,
    response_bytes BIGINT,
    content VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE mcp_requests IS 'Requests to MCP servers and of MCP servers. The view mcp_calls adds the tool call of each.';
COMMENT ON COLUMN mcp_requests.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN mcp_requests.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN mcp_requests.session_id IS 'The ID of the session.';
COMMENT ON COLUMN mcp_requests.interaction_id IS 'The interaction in which the program of the session sent the request; NULL for the requests of other programs.';
COMMENT ON COLUMN mcp_requests.lane IS 'The lane of the caller, as interaction_id.';
COMMENT ON COLUMN mcp_requests.turn IS 'The turn of the caller within the lane, as interaction_id.';
COMMENT ON COLUMN mcp_requests.call_id IS 'The ID that agentobs gave the request.';
COMMENT ON COLUMN mcp_requests.span_id IS 'The span in which the program of the session sent the request, or NULL.';
COMMENT ON COLUMN mcp_requests.server IS 'The name of the server in the configuration of the client, or the name that the server reports; a keyed digest if it contains characters other than those of names.';
COMMENT ON COLUMN mcp_requests.transport IS '`stdio`; `http`: streamable HTTP; `process`: a client in the program of the session.';
COMMENT ON COLUMN mcp_requests.sender IS '`client`, or `server` for a request of the server, such as `sampling/createMessage`.';
COMMENT ON COLUMN mcp_requests.method IS 'The JSON-RPC method, such as `tools/call`; a keyed digest if the protocol does not define it.';
COMMENT ON COLUMN mcp_requests.tool IS 'The tool of `tools/call`; a keyed digest if neither the server nor a request lists it; else NULL.';
COMMENT ON COLUMN mcp_requests.started_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN mcp_requests.ended_ns IS 'When the response arrived; NULL without a response. [ns since 1970 UTC]';
COMMENT ON COLUMN mcp_requests.duration_ns IS 'The time until the response, by a clock that does not jump; NULL without a response. [ns]';
COMMENT ON COLUMN mcp_requests.outcome IS '`ok`; `tool_error`: the result is marked as an error; `error`: a JSON-RPC error; `no_response`.';
COMMENT ON COLUMN mcp_requests.error_code IS 'The code of the JSON-RPC error, or NULL.';
COMMENT ON COLUMN mcp_requests.request_bytes IS 'Size of the request as JSON. [bytes]';
COMMENT ON COLUMN mcp_requests.response_bytes IS 'Size of the response as JSON; NULL without a response. [bytes]';
COMMENT ON COLUMN mcp_requests.content IS 'The content ID of request and response; NULL if the session records no content.';
COMMENT ON COLUMN mcp_requests.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';

CREATE TABLE effect_links (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    effect_id VARCHAR,
    kind VARCHAR,
    tool_use_id VARCHAR,
    attempt_id VARCHAR,
    ordinal BIGINT,
    interaction_id VARCHAR,
    lane VARCHAR,
    turn BIGINT,
    certainty VARCHAR,
    rule VARCHAR,
    session_sequence BIGINT
);
COMMENT ON TABLE effect_links IS 'Which tool call an effect belongs to. An effect without a row has no known tool call.';
COMMENT ON COLUMN effect_links.segment_id IS 'The segment that contains the record.';
COMMENT ON COLUMN effect_links.sequence IS 'The number of the record within the segment.';
COMMENT ON COLUMN effect_links.session_id IS 'The ID of the session.';
COMMENT ON COLUMN effect_links.effect_id IS 'The command (command_runs.command_id) or the MCP call (mcp_requests.call_id).';
COMMENT ON COLUMN effect_links.kind IS '`command` or `mcp_call`.';
COMMENT ON COLUMN effect_links.tool_use_id IS 'The ID of the tool call.';
COMMENT ON COLUMN effect_links.attempt_id IS 'The attempt whose response contains the tool call.';
COMMENT ON COLUMN effect_links.ordinal IS 'The position of the tool call in that response, from 1.';
COMMENT ON COLUMN effect_links.interaction_id IS 'The interaction of the tool call.';
COMMENT ON COLUMN effect_links.lane IS 'The lane of the tool call.';
COMMENT ON COLUMN effect_links.turn IS 'The turn of the tool call within the lane, from 1.';
COMMENT ON COLUMN effect_links.certainty IS '`observed`: the agent names the tool call, or ran the effect in its span; `inferred`: a rule found it.';
COMMENT ON COLUMN effect_links.rule IS 'Why the effect belongs to the tool call: `named_call`, `same_span`, `equal_command`, `contained_command`, `parent_command`, `equal_call` or `only_open_call`; see docs/effects.md.';
COMMENT ON COLUMN effect_links.session_sequence IS 'The number of the record among the facts of the session, from 1; NULL if the record was written by another process than that of the session.';
