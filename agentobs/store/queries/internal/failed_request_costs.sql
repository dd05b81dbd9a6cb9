-- What did the requests of a session cost that failed?
--
-- $session_id: the session. One row for each request that failed and was billed.
SELECT spent.attempt_id, sum(spent.cost_usd) AS cost_usd, summed_status(spent.cost_usd, spent.cost_status) AS cost_status
FROM audited_costs AS spent
JOIN attempts ON spent.session_id = attempts.session_id AND spent.attempt_id = attempts.attempt_id
WHERE spent.session_id = $session_id::VARCHAR AND attempts.outcome NOT IN ('ok', 'cancelled')
GROUP BY spent.attempt_id
HAVING sum(spent.cost_usd) > 0;
