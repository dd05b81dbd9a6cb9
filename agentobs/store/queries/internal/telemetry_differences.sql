-- How many requests of a recording appear in it or in its telemetry, and about how many do both disagree?
--
-- $session_ids: the recorded sessions. $client_ids: the client's IDs of the sessions with telemetry. $since_ns: the start
-- of the recording; what the telemetry alone mentions counts from this time on.
SELECT
    count(*) AS requests,
    count(*) FILTER (WHERE difference <> 'no request ID') AS differences,
    count(*) FILTER (WHERE difference = 'no request ID') AS unidentified
FROM telemetry_comparison
WHERE
    list_contains($session_ids::VARCHAR[], session_id)
    OR (session_id IS NULL AND list_contains($client_ids::VARCHAR[], client_session) AND at_ns >= $since_ns::BIGINT);
