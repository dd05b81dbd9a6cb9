-- How many sessions failed, crashed, or have no recorded end?
--
-- $session_ids: only these sessions, or NULL. $telemetry: true to include the sessions that only contain telemetry, or
-- NULL.
SELECT count(*) AS sessions
FROM sessions
WHERE
    is_failure(status)
    AND (NOT is_telemetry OR coalesce($telemetry::BOOLEAN, false))
    AND ($session_ids::VARCHAR[] IS NULL OR session_id IN (SELECT unnest($session_ids::VARCHAR[])));
