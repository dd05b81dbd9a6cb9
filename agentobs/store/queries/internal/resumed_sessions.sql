-- Which session does each resumed session continue?
SELECT session_id, any_value(continues_session_id) AS continues_session_id FROM session_starts
WHERE relation = 'resume' AND continues_session_id IS NOT NULL GROUP BY session_id;
