-- How many operations of a session failed besides its tool calls and its requests?
--
-- $session_id: the session. These are spans, interactions, observed commands and MCP calls. The spans include those of
-- failed tool calls and requests.
SELECT
    (SELECT count(*) FROM spans WHERE session_id = $session_id::VARCHAR AND status = 'error')
    + (SELECT count(*) FROM interaction_ends WHERE session_id = $session_id::VARCHAR AND is_error)
    + (
        SELECT count(*)
        FROM commands
        WHERE session_id = $session_id::VARCHAR AND (outcome IN ('signaled', 'not_started') OR exit_code <> 0)
    )
    + (SELECT count(*) FROM mcp_calls WHERE session_id = $session_id::VARCHAR AND outcome <> 'ok') AS failures;
