-- What did the requests of a session cost that failed?
--
-- $session_id: the session. One row for each request that failed, or whose response was cut. cost_usd is NULL if no usage
-- was reported or no price is known; has_usage is false if no usage was reported.
SELECT
    attempts.attempt_id,
    count(spent.attempt_id) > 0 AS has_usage,
    sum(spent.cost_usd) AS cost_usd,
    summed_status(spent.cost_usd, spent.cost_status) AS cost_status
FROM attempts
LEFT JOIN audited_costs AS spent
    ON spent.session_id = attempts.session_id AND spent.attempt_id = attempts.attempt_id
WHERE attempts.session_id = $session_id::VARCHAR AND attempts.outcome NOT IN ('ok', 'cancelled')
GROUP BY attempts.attempt_id, attempts.started_ns
ORDER BY attempts.started_ns, attempts.attempt_id;
