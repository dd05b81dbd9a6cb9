-- Which row of `sessions` belongs to one session?
SELECT * FROM sessions WHERE session_id = $session_id::VARCHAR;
