-- What is the fingerprint of the row of one session?
SELECT session_id, status, fingerprint FROM app.listing WHERE session_id = $session_id::VARCHAR;
