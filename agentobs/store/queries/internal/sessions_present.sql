-- Which of the given sessions have records?
--
-- $session_ids: a list of IDs.
SELECT DISTINCT session_id FROM (
    SELECT session_id FROM session_starts UNION ALL SELECT session_id FROM attempts
    UNION ALL SELECT session_id FROM events UNION ALL SELECT session_id FROM span_starts
) WHERE session_id IN (SELECT unnest($session_ids::VARCHAR[]));
