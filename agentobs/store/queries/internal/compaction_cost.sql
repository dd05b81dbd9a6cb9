-- What did the requests for summaries of a session cost?
--
-- $session_id: the session. One row for each request with billed calls.
SELECT
    attempt_id,
    count(*) AS calls,
    sum(cost_usd) AS cost_usd,
    summed_status(cost_usd, cost_status) AS cost_status
FROM audited_costs
WHERE
    session_id = $session_id::VARCHAR
    AND attempt_id IN (
        SELECT attempt_id FROM attempts WHERE session_id = $session_id::VARCHAR AND query_source = 'compaction'
    )
GROUP BY attempt_id
ORDER BY min(at_ns), attempt_id;
