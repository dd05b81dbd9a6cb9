-- How many tool calls failed in sessions, and which tool failed most often?
--
-- $session_ids: the sessions. Sessions without failed calls have no row. The calls are those of `errors`; this query reads
-- only the tables with the results, because the list of sessions runs it for each page. failing_tool is the tool that
-- failed most often, and failing_tool_calls how often it failed; NULL if no name is known, as for tools of the provider.
WITH failed AS (
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
), uses AS (
    SELECT session_id, attempt_id, ordinal, any_value(name) AS name
    FROM tool_uses
    WHERE session_id IN (SELECT session_id FROM failed)
    GROUP BY session_id, attempt_id, ordinal
), counted AS (
    SELECT failed.session_id, uses.name, count(*) AS calls
    FROM failed
    LEFT JOIN uses
        ON failed.session_id = uses.session_id AND failed.attempt_id = uses.attempt_id AND failed.ordinal = uses.ordinal
    GROUP BY failed.session_id, uses.name
)
SELECT
    session_id,
    sum(calls)::BIGINT AS failed_calls,
    (list(name ORDER BY calls DESC, name) FILTER (WHERE name IS NOT NULL))[1] AS failing_tool,
    max(calls) FILTER (WHERE name IS NOT NULL) AS failing_tool_calls
FROM counted
GROUP BY session_id;
