-- What did each call of one attempt cost?
SELECT * FROM audited_costs
WHERE session_id = $session_id::VARCHAR AND attempt_id = $attempt_id::VARCHAR
ORDER BY iteration;
