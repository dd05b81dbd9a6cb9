-- What are the name, status and content mode of one session? All are NULL if there is no such session.
SELECT any_value(s.name) AS name, any_value(s.status) AS status, any_value(t.content) AS content
FROM sessions AS s
LEFT JOIN session_starts AS t USING (session_id)
WHERE session_id = $session_id::VARCHAR;
