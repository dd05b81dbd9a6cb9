-- What does one session cost, and by which price version?
SELECT sum(cost_usd) AS cost_usd, max(price_version) AS price_version
FROM costs
WHERE session_id = $session_id::VARCHAR;
