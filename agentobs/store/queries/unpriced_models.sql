-- Which models have no price, and how many calls do they have?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL.
SELECT model, count(*) AS calls
FROM costs
WHERE
    cost_usd IS NULL
    AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY model
ORDER BY calls DESC, model;
