-- Which recorded session does a client's conversation continue? By the client's own ID first, then by its tool calls.
SELECT session_id, relation FROM (
    SELECT session_id, 'resume' AS relation, started_ns FROM session_starts WHERE tags['client_session'] = $client_id
    UNION ALL
    SELECT u.session_id, 'fork', max(s.started_ns)
    FROM tool_uses u JOIN session_starts s USING (session_id)
    WHERE list_contains($tool_use_ids, u.tool_use_id)
    GROUP BY u.session_id
)
ORDER BY relation = 'resume' DESC, started_ns DESC
LIMIT 1;
