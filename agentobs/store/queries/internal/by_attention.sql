-- In which order do sessions need attention?
--
-- $session_ids, $statuses, $signatures, $costs: the sessions, and of each its status, the number of its failure signatures
-- and its cost, US dollars or NULL. The list of sessions in the dashboard has the same order.
WITH listed AS (
    SELECT
        unnest($session_ids::VARCHAR[]) AS session_id,
        unnest($statuses::VARCHAR[]) AS status,
        unnest($signatures::BIGINT[]) AS signatures,
        unnest($costs::DECIMAL(38, 12)[]) AS cost_usd
)
SELECT session_id
FROM listed
ORDER BY attention(status, signatures) DESC, cost_usd DESC NULLS LAST, session_id DESC;
