-- Which sessions belong to the conversation of a session, oldest first, and what did each cost?
--
-- $session_id: any session of the conversation. The cost of a session is counted only in its row, so the sum of the
-- rows is the cost of the conversation. A fork is a separate conversation.
WITH known AS MATERIALIZED (
    SELECT session_id, conversation_id, name, status, continues_session_id, started_ns, duration_ns, turns
    FROM sessions
), spent AS (
    SELECT
        session_id,
        count(*) AS calls,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status
    FROM audited_costs
    GROUP BY session_id
)
SELECT
    s.session_id,
    s.name,
    s.status,
    s.continues_session_id,
    s.started_ns,
    s.duration_ns,
    s.turns,
    coalesce(spent.calls, 0) AS calls,
    spent.cost_usd,
    spent.cost_status
FROM known AS s
LEFT JOIN spent ON s.session_id = spent.session_id
WHERE s.conversation_id = (SELECT conversation_id FROM known WHERE session_id = $session_id::VARCHAR)
ORDER BY s.started_ns, s.session_id;
