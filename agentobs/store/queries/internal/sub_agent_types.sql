-- Of which type is the agent of each sub-agent's lane of one session, as its span reports it?
SELECT lane, arg_min(label, started_ns) AS agent_type
FROM spans
WHERE session_id = $session_id::VARCHAR AND name = 'sub_agent' AND lane IS NOT NULL AND label IS NOT NULL
GROUP BY lane
ORDER BY lane;
