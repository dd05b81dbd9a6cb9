-- How many tool calls failed in sessions, and which tool failed most often?
--
-- $session_ids: the sessions. Sessions without failed calls have no row. The calls are those of `errors`; this query reads
-- only the tables with the results and the calls, because the list of sessions runs it for each page. failing_tool is the
-- tool that failed most often, and failing_tool_calls how often it failed; NULL if no name is known, as for tools of the
-- provider.
WITH failed AS MATERIALIZED (
    SELECT session_id, attempt_id, ordinal FROM tool_results
    WHERE is_error AND session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    UNION ALL
    SELECT session_id, NULL, NULL
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
    SELECT failed.session_id, uses.name, count(*) AS calls
    FROM (
        SELECT session_id, attempt_id, ordinal, name FROM tool_uses
        WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    ) AS uses
    JOIN failed ON uses.attempt_id = failed.attempt_id AND uses.ordinal = failed.ordinal
        AND uses.session_id = failed.session_id
    GROUP BY failed.session_id, uses.name
), named AS (
    SELECT session_id, list(name ORDER BY calls DESC, name)[1] AS failing_tool, max(calls) AS failing_tool_calls
    FROM tools
    GROUP BY session_id
)
SELECT counted.*, named.failing_tool, least(named.failing_tool_calls, counted.failed_calls) AS failing_tool_calls
FROM (SELECT session_id, count(*) AS failed_calls FROM failed GROUP BY session_id) AS counted
LEFT JOIN named ON counted.session_id = named.session_id;
