-- Which requests that are turns does one lane have, and what did each cost?
--
-- $offset, $limit: the rows of one page.
WITH listed AS (
    SELECT * FROM attempts
    WHERE session_id = $session_id AND lane = $lane AND makes_turns AND origin IS DISTINCT FROM 'managed'
    ORDER BY started_ns, attempt_id
    LIMIT $limit::BIGINT OFFSET $offset::BIGINT
), spent AS (
    SELECT attempt_id, sum(cost_usd) AS cost_usd, summed_status(cost_usd, cost_status) AS cost_status
    FROM audited_costs
    WHERE session_id = $session_id
    GROUP BY attempt_id
)
SELECT listed.*, spent.cost_usd, spent.cost_status
FROM listed
LEFT JOIN spent USING (attempt_id)
ORDER BY listed.started_ns, listed.attempt_id;
