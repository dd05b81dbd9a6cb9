-- In which order do sessions need attention?
--
-- $session_ids, $statuses, $signatures, $costs, $starts: the sessions, and of each its status, the number of its failure
-- signatures, its cost, US dollars or NULL, and its start. The list of sessions in the dashboard has the same order.
WITH listed AS (
    SELECT
        unnest($session_ids::VARCHAR[]) AS session_id,
        unnest($statuses::VARCHAR[]) AS status,
        unnest($signatures::BIGINT[]) AS signatures,
        unnest($costs::DECIMAL(38, 12)[]) AS cost_usd,
        unnest($starts::BIGINT[]) AS started_ns
)
SELECT session_id
FROM listed
ORDER BY
    attention(status, has_failed_calls(session_id), signatures, started_ns) DESC,
    attention_money(status, cost_usd) DESC NULLS LAST,
    started_ns DESC,
    session_id DESC;
