-- Which lanes does one session have, and how many requests?
SELECT lane, count(*) AS requests, min(started_ns) AS started_ns
FROM attempts
WHERE session_id = $session_id AND list_contains($endpoints::VARCHAR[], endpoint)
GROUP BY lane
ORDER BY started_ns, lane;
