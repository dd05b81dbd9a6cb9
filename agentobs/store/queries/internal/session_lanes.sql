-- Which lanes does one session have, and how many requests that are turns?
SELECT lane, count(*) AS requests, min(started_ns) AS started_ns
FROM attempts
WHERE session_id = $session_id AND makes_turns AND origin IS DISTINCT FROM 'managed'
GROUP BY lane
ORDER BY started_ns, lane;
