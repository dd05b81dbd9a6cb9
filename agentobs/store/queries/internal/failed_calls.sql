-- How many tool calls failed or were denied in sessions, and which tool most often?
--
-- $session_ids: the sessions. One row for the failed calls of each session, and one for its denied calls, if it has any.
-- The calls are those of `errors`, so a denied call counts even if its result is not an error. This query reads only the
-- tables with the results and the calls, because the list of sessions runs it for each page. tool is the most frequent
-- tool, and tool_calls its number of calls; NULL if no name is known, as for tools of the provider.
WITH failed AS MATERIALIZED (
    SELECT session_id, attempt_id, ordinal, coalesce(outcome IN ('denied', 'blocked'), false) AS is_denied
    FROM tool_results
    WHERE (is_error OR outcome IN ('denied', 'blocked')) AND session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    UNION ALL
    SELECT session_id, NULL, NULL, false
    FROM (
        SELECT session_id
        FROM provider_tool_results
        WHERE is_error AND session_id IN (SELECT unnest($session_ids::VARCHAR[]))
        -- Several streams of a managed agent may contain the same result.
        QUALIFY ordinal IS NULL OR row_number() OVER (
            PARTITION BY session_id, attempt_id, ordinal ORDER BY result_ns, segment_id, sequence
        ) = 1
    )
), tools AS (
    SELECT failed.session_id, failed.is_denied, uses.name, count(*) AS calls
    FROM (
        SELECT session_id, attempt_id, ordinal, name FROM tool_uses
        WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    ) AS uses
    JOIN failed ON uses.attempt_id = failed.attempt_id AND uses.ordinal = failed.ordinal
        AND uses.session_id = failed.session_id
    GROUP BY failed.session_id, failed.is_denied, uses.name
), named AS (
    SELECT session_id, is_denied, list(name ORDER BY calls DESC, name)[1] AS tool, max(calls) AS tool_calls
    FROM tools
    GROUP BY session_id, is_denied
)
SELECT counted.*, named.tool, least(named.tool_calls, counted.calls) AS tool_calls
FROM (SELECT session_id, is_denied, count(*) AS calls FROM failed GROUP BY session_id, is_denied) AS counted
LEFT JOIN named ON counted.session_id = named.session_id AND counted.is_denied = named.is_denied;
