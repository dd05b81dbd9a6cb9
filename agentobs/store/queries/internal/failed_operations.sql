-- How many operations of a session failed or were denied?
--
-- $session_id: the session. These are its errors, which include denied tool calls, and spans, observed commands and MCP
-- calls that failed. A failed request may be counted as an error and as a span: only the difference to 0 matters.
SELECT
    (SELECT count(*) FROM spans WHERE session_id = $session_id::VARCHAR AND status = 'error')
    + (SELECT count(*) FROM errors WHERE session_id = $session_id::VARCHAR)
    + (
        SELECT count(*)
        FROM commands
        WHERE session_id = $session_id::VARCHAR AND (outcome IN ('signaled', 'not_started') OR exit_code <> 0)
    )
    + (SELECT count(*) FROM mcp_calls WHERE session_id = $session_id::VARCHAR AND outcome <> 'ok') AS failures;
