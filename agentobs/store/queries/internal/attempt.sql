-- Which row of `attempts` belongs to one attempt?
SELECT * FROM attempts WHERE attempt_id = $attempt_id::VARCHAR ORDER BY started_ns LIMIT 1;
