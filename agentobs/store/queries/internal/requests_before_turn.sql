-- How many requests of one lane that are turns come before one turn?
SELECT count(*) AS requests
FROM attempts
WHERE session_id = $session_id AND lane = $lane AND makes_turns AND origin IS DISTINCT FROM 'managed' AND turn < $turn::BIGINT;
