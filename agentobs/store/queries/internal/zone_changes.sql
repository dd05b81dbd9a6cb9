-- Which zones of the prompt did one attempt change?
SELECT * FROM zone_changes WHERE session_id = $session_id::VARCHAR AND attempt_id = $attempt_id::VARCHAR;
