-- Effects: commands and MCP calls, each with its tool call.

-- The tool call of each effect. It is a macro, because a view would be another table for users.
CREATE OR REPLACE MACRO effect_calls() AS TABLE
SELECT
    links.session_id,
    links.effect_id,
    links.interaction_id,
    links.lane,
    links.turn,
    links.tool_use_id,
    tool_uses.name AS tool_name,
    links.attempt_id,
    links.ordinal,
    links.certainty,
    links.rule
FROM effect_links AS links
LEFT JOIN tool_uses USING (session_id, attempt_id, ordinal);

CREATE OR REPLACE VIEW commands AS
SELECT
    runs.session_id,
    coalesce(runs.interaction_id, calls.interaction_id) AS interaction_id,
    coalesce(runs.lane, calls.lane) AS lane,
    coalesce(runs.turn, calls.turn) AS turn,
    runs.command_id,
    runs.parent_command_id,
    runs.span_id,
    runs.program,
    runs.source,
    runs.started_ns,
    runs.ended_ns,
    runs.duration_ns,
    runs.outcome,
    runs.exit_code,
    runs.signal,
    runs.argument_count,
    runs.argument_bytes,
    runs.stdin,
    runs.stdout,
    runs.stderr,
    runs.is_merged,
    runs.stdout_bytes,
    runs.stderr_bytes,
    runs.content,
    calls.tool_use_id,
    calls.tool_name,
    calls.attempt_id,
    calls.ordinal,
    coalesce(calls.certainty, 'none') AS link,
    calls.rule AS link_rule
FROM command_runs AS runs
LEFT JOIN effect_calls() AS calls ON calls.session_id = runs.session_id AND calls.effect_id = runs.command_id;
COMMENT ON VIEW commands IS 'Commands that were observed, each with its tool call if that is known.';
COMMENT ON COLUMN commands.session_id IS 'The ID of the session.';
COMMENT ON COLUMN commands.interaction_id IS 'The interaction of the caller or of the tool call; NULL if unknown.';
COMMENT ON COLUMN commands.lane IS 'The lane of the caller or of the tool call; NULL if unknown.';
COMMENT ON COLUMN commands.turn IS 'The turn of the caller or of the tool call within the lane, from 1; NULL if unknown.';
COMMENT ON COLUMN commands.command_id IS 'The ID of the command.';
COMMENT ON COLUMN commands.parent_command_id IS 'The observed command that ran this command; NULL if there is none, or if it is unknown.';
COMMENT ON COLUMN commands.span_id IS 'The span in which the program of the session ran the command, or NULL.';
COMMENT ON COLUMN commands.program IS 'The name of the program, such as `bash`; a keyed digest if neither agentobs nor the user has declared it as observed.';
COMMENT ON COLUMN commands.source IS '`shim`: a shim in PATH observed it; `process`: the program of the session ran it with subprocess or asyncio.';
COMMENT ON COLUMN commands.started_ns IS 'When it started. [ns since 1970 UTC]';
COMMENT ON COLUMN commands.ended_ns IS 'When it ended; NULL if that is unknown. [ns since 1970 UTC]';
COMMENT ON COLUMN commands.duration_ns IS 'How long it ran, by a clock that does not jump; NULL if unknown. [ns]';
COMMENT ON COLUMN commands.outcome IS '`exited`; `signaled`: a signal ended it; `running`: it still ran when the observation ended; `lost`: the shim was killed before it ended; `not_started`: the program could not be started.';
COMMENT ON COLUMN commands.exit_code IS 'Its exit code; NULL if it has none.';
COMMENT ON COLUMN commands.signal IS 'The signal that ended it, such as `SIGTERM`, or NULL.';
COMMENT ON COLUMN commands.argument_count IS 'The number of arguments, without the name of the program.';
COMMENT ON COLUMN commands.argument_bytes IS 'The total size of the arguments, without the name of the program. [bytes]';
COMMENT ON COLUMN commands.stdin IS 'What standard input was: `pipe`, `socket`, `file`, `terminal`, `device` or `closed`; for `process` also `captured` and `inherited`; NULL if unknown.';
COMMENT ON COLUMN commands.stdout IS 'What standard output was, as stdin.';
COMMENT ON COLUMN commands.stderr IS 'What standard error was, as stdin.';
COMMENT ON COLUMN commands.is_merged IS 'Whether standard output and standard error were the same pipe or file, so that stdout_bytes contains both.';
COMMENT ON COLUMN commands.stdout_bytes IS 'What the command wrote to standard output until it ended; NULL if unknown, as for a terminal. [bytes]';
COMMENT ON COLUMN commands.stderr_bytes IS 'What the command wrote to standard error until it ended; NULL if unknown, as for a terminal. [bytes]';
COMMENT ON COLUMN commands.content IS 'The content ID of arguments, working directory and streams; NULL if the session records no content.';
COMMENT ON COLUMN commands.tool_use_id IS 'The ID of the tool call that the row belongs to; NULL if unknown.';
COMMENT ON COLUMN commands.tool_name IS 'The name of the tool in that call.';
COMMENT ON COLUMN commands.attempt_id IS 'The attempt whose response contains the tool call.';
COMMENT ON COLUMN commands.ordinal IS 'The position of the tool call in that response, from 1.';
COMMENT ON COLUMN commands.link IS '`observed`, `inferred`, or `none` if the tool call is unknown.';
COMMENT ON COLUMN commands.link_rule IS 'The rule of the link, as in effect_links; NULL without a link.';

CREATE OR REPLACE VIEW mcp_calls AS
SELECT
    runs.session_id,
    coalesce(runs.interaction_id, calls.interaction_id) AS interaction_id,
    coalesce(runs.lane, calls.lane) AS lane,
    coalesce(runs.turn, calls.turn) AS turn,
    runs.call_id,
    runs.span_id,
    runs.server,
    runs.transport,
    runs.sender,
    runs.method,
    runs.tool,
    runs.started_ns,
    runs.ended_ns,
    runs.duration_ns,
    runs.outcome,
    runs.error_code,
    runs.request_bytes,
    runs.response_bytes,
    runs.content,
    calls.tool_use_id,
    calls.tool_name,
    calls.attempt_id,
    calls.ordinal,
    coalesce(calls.certainty, 'none') AS link,
    calls.rule AS link_rule
FROM mcp_requests AS runs
LEFT JOIN effect_calls() AS calls ON calls.session_id = runs.session_id AND calls.effect_id = runs.call_id;
COMMENT ON VIEW mcp_calls IS 'Requests to MCP servers and of MCP servers, each with its tool call if that is known.';
COMMENT ON COLUMN mcp_calls.session_id IS 'The ID of the session.';
COMMENT ON COLUMN mcp_calls.interaction_id IS 'The interaction of the caller or of the tool call; NULL if unknown.';
COMMENT ON COLUMN mcp_calls.lane IS 'The lane of the caller or of the tool call; NULL if unknown.';
COMMENT ON COLUMN mcp_calls.turn IS 'The turn of the caller or of the tool call within the lane, from 1; NULL if unknown.';
COMMENT ON COLUMN mcp_calls.call_id IS 'The ID that agentobs gave the request.';
COMMENT ON COLUMN mcp_calls.span_id IS 'The span in which the program of the session sent the request, or NULL.';
COMMENT ON COLUMN mcp_calls.server IS 'The name of the server in the configuration of the client, or the name that the server reports; a keyed digest if it contains characters other than those of names.';
COMMENT ON COLUMN mcp_calls.transport IS '`stdio`; `http`: streamable HTTP; `process`: a client in the program of the session.';
COMMENT ON COLUMN mcp_calls.sender IS '`client`, or `server` for a request of the server, such as `sampling/createMessage`.';
COMMENT ON COLUMN mcp_calls.method IS 'The JSON-RPC method, such as `tools/call`; a keyed digest if the protocol does not define it.';
COMMENT ON COLUMN mcp_calls.tool IS 'The tool of `tools/call`; a keyed digest if neither the server nor a request lists it; else NULL.';
COMMENT ON COLUMN mcp_calls.started_ns IS 'When the request was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN mcp_calls.ended_ns IS 'When the response arrived; NULL without a response. [ns since 1970 UTC]';
COMMENT ON COLUMN mcp_calls.duration_ns IS 'The time until the response, by a clock that does not jump; NULL without a response. [ns]';
COMMENT ON COLUMN mcp_calls.outcome IS '`ok`; `tool_error`: the result is marked as an error; `error`: a JSON-RPC error; `no_response`.';
COMMENT ON COLUMN mcp_calls.error_code IS 'The code of the JSON-RPC error, or NULL.';
COMMENT ON COLUMN mcp_calls.request_bytes IS 'Size of the request as JSON. [bytes]';
COMMENT ON COLUMN mcp_calls.response_bytes IS 'Size of the response as JSON; NULL without a response. [bytes]';
COMMENT ON COLUMN mcp_calls.content IS 'The content ID of request and response; NULL if the session records no content.';
COMMENT ON COLUMN mcp_calls.tool_use_id IS 'The ID of the tool call that the row belongs to; NULL if unknown.';
COMMENT ON COLUMN mcp_calls.tool_name IS 'The name of the tool in that call.';
COMMENT ON COLUMN mcp_calls.attempt_id IS 'The attempt whose response contains the tool call.';
COMMENT ON COLUMN mcp_calls.ordinal IS 'The position of the tool call in that response, from 1.';
COMMENT ON COLUMN mcp_calls.link IS '`observed`, `inferred`, or `none` if the tool call is unknown.';
COMMENT ON COLUMN mcp_calls.link_rule IS 'The rule of the link, as in effect_links; NULL without a link.';
