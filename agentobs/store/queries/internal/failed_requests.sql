-- How many requests of sessions got no response: all their attempts failed?
--
-- $session_ids: the sessions. Sessions without such requests have no row. The attempts of a turn are one request, even if
-- the program sent it again itself. As in unfinished_turns, a request that was canceled, or whose response may still come,
-- did not fail.
SELECT session_id, count(*) AS failed_requests
FROM (
    SELECT session_id
    FROM attempts
    WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    GROUP BY session_id, lane, turn, CASE WHEN turn IS NULL THEN coalesce(llm_request_id, attempt_id) END
    HAVING NOT bool_or(outcome IN ('ok', 'cancelled', 'crashed'))
)
GROUP BY session_id;
