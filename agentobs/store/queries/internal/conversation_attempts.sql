-- Which turns does one session have, including failed ones, in time order?
SELECT attempt_id, lane, turn, started_ns, outcome IN ('ok', 'cancelled'), redactions
FROM attempts
WHERE session_id = $session_id AND makes_turns AND origin IS DISTINCT FROM 'managed'
ORDER BY started_ns, sequence;
