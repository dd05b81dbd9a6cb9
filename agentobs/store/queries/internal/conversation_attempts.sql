-- Which requests to the given endpoints does one session have, in time order?
SELECT attempt_id, lane, turn, started_ns, outcome IN ('ok', 'cancelled'), redactions
FROM attempts
WHERE session_id = $session_id AND list_contains($endpoints::VARCHAR[], endpoint)
ORDER BY started_ns, sequence;
