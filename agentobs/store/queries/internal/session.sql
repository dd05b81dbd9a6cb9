-- Which row of `sessions` is that of one session?
SELECT * FROM sessions WHERE session_id = $session_id::VARCHAR;
