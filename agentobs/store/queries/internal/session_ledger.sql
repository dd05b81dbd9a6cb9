-- What did each call of one session use and cost?
--
-- $offset, $limit: the rows of one page.
SELECT costs.*, attempts.lane, attempts.turn, attempts.attempt, attempts.outcome
FROM audited_costs AS costs
LEFT JOIN attempts ON costs.session_id = attempts.session_id AND costs.attempt_id = attempts.attempt_id
WHERE costs.session_id = $session_id::VARCHAR
ORDER BY costs.at_ns, costs.attempt_id, costs.iteration
LIMIT $limit::BIGINT OFFSET $offset::BIGINT;
