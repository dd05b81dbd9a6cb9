-- What are the name, status, parent, duration and number of turns of one session, and how many of its records were dropped?
SELECT name, status, continues_session_id, forked_turn, dropped::BIGINT AS dropped, duration_ns, turns
FROM sessions
WHERE session_id = $session_id::VARCHAR;
