-- What are the last values of the scores with one name?
--
-- $name: the name.
SELECT session_id, value_type, value, label FROM latest_scores WHERE name = $name::VARCHAR;
