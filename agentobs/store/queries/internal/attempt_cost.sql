-- What did one attempt cost in total, and how certain is that? No row if it was not billed.
SELECT
    sum(cost_usd) AS cost_usd, count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls,
    count(*) FILTER (WHERE cost_status = 'lower_bound') AS lower_bound_calls,
    summed_status(cost_usd, cost_status) AS cost_status
FROM audited_costs
WHERE session_id = $session_id::VARCHAR AND attempt_id = $attempt_id::VARCHAR
HAVING count(*) > 0;
