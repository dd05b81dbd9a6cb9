-- How many tool calls failed in sessions?
--
-- $session_ids: the sessions. Sessions without failed calls have no row. The calls are those of `errors`; this query reads
-- only the tables with the results, because the list of sessions runs it for each page.
SELECT session_id, count(*) AS failed_calls
FROM (
    SELECT session_id, segment_id, sequence FROM tool_results WHERE is_error
    UNION ALL
    SELECT session_id, segment_id, sequence
    FROM provider_tool_results
    WHERE is_error
    -- Several streams of a managed agent may contain the same result.
    QUALIFY ordinal IS NULL OR row_number() OVER (
        PARTITION BY session_id, attempt_id, ordinal ORDER BY result_ns, segment_id, sequence
    ) = 1
)
WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]))
GROUP BY session_id;
