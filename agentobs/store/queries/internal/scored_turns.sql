-- In which interaction is a turn of a lane? No row if there is no such turn.
SELECT arg_max(interaction_id, started_ns) AS interaction_id, lane, turn
FROM attempts
WHERE session_id = $session_id::VARCHAR AND lane = $lane::VARCHAR AND turn = $turn::BIGINT
GROUP BY lane, turn;
