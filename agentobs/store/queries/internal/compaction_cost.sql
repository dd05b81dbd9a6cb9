-- What did the requests for summaries of a session cost?
--
-- $session_id: the session. calls is the number of billed calls.
SELECT
    count(*) AS calls,
    sum(cost_usd) AS cost_usd,
    summed_status(cost_usd, cost_status) AS cost_status,
    count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls
FROM audited_costs
WHERE
    session_id = $session_id::VARCHAR
    AND attempt_id IN (
        SELECT attempt_id FROM attempts WHERE session_id = $session_id::VARCHAR AND query_source = 'compaction'
    );
