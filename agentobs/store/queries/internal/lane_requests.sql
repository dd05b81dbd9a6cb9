-- Which requests that are turns does one lane have?
--
-- $offset, $limit: the rows of one page.
SELECT * FROM attempts
WHERE session_id = $session_id AND lane = $lane AND makes_turns AND origin IS DISTINCT FROM 'managed'
ORDER BY started_ns, attempt_id
LIMIT $limit::BIGINT OFFSET $offset::BIGINT;
