-- Why did one session fail?
SELECT * FROM failures WHERE session_id = $session_id::VARCHAR;
