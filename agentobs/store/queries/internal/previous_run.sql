-- Which session with the same name started last before one session?
--
-- $session_id: the session.
WITH this AS (
    SELECT name, min(started_ns) AS started_ns FROM session_starts
    WHERE session_id = $session_id::VARCHAR
    GROUP BY name
)
SELECT starts.session_id
FROM session_starts AS starts
JOIN this USING (name)
WHERE starts.session_id <> $session_id::VARCHAR AND starts.started_ns <= this.started_ns
ORDER BY starts.started_ns DESC, starts.session_id DESC
LIMIT 1;
