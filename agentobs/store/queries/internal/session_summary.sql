-- What are the name, status and parent of one session, and how many of its records were dropped?
SELECT name, status, continues_session_id, forked_turn, dropped::BIGINT AS dropped
FROM sessions
WHERE session_id = $session_id::VARCHAR;
