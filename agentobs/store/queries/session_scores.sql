-- What are the last values of the scores of a session, its turns and its tool calls?
--
-- $session_id: the session. given is the number of values, including earlier ones.
SELECT name, value_type, value, label, lane, turn, tool_use_id, comment, source, at_ns, given
FROM latest_scores
WHERE session_id = $session_id::VARCHAR
ORDER BY tool_use_id IS NOT NULL, turn IS NOT NULL, lane, turn, at_ns, name;
