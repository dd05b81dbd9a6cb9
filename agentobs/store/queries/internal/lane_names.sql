-- Which lanes do sessions have, in the order of their first start, and of which type is the agent of each?
--
-- $session_ids: the sessions. agent_type is the name of the sub-agent as its span reports it, or NULL.
WITH wanted AS (
    SELECT unnest($session_ids::VARCHAR[]) AS session_id
), seen AS (
    SELECT session_id, lane, started_ns, NULL::VARCHAR AS agent_type FROM attempts
    UNION ALL
    SELECT session_id, lane, started_ns, CASE WHEN name IN ('sub_agent', 'interaction') THEN label END FROM spans
)
SELECT
    session_id, lane, arg_min(agent_type, started_ns) FILTER (WHERE agent_type IS NOT NULL) AS agent_type,
    min(started_ns) AS started_ns
FROM seen
SEMI JOIN wanted USING (session_id)
WHERE lane IS NOT NULL
GROUP BY session_id, lane
ORDER BY session_id, started_ns, lane;
