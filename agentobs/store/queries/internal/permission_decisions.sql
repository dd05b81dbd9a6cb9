-- Which permission decisions does one session have, and how long did approvals take?
SELECT tool, behavior, reason_type AS reason, resolver, count(*) AS decisions,
    count(*) FILTER (WHERE approval_requested) AS approval_requested, sum(approval_wait_ns)::BIGINT AS approval_wait_ns
FROM permissions
WHERE session_id = $session_id::VARCHAR
GROUP BY ALL
ORDER BY decisions DESC, tool, behavior, reason, resolver;
