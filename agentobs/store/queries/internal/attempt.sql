-- Which row of `attempts` is that of one attempt?
SELECT * FROM attempts WHERE attempt_id = $attempt_id::VARCHAR ORDER BY started_ns LIMIT 1;
