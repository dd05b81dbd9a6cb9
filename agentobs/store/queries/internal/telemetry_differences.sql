-- For how many requests of these client sessions do the recorded sessions and the telemetry disagree?
SELECT count(*) FROM telemetry_differences WHERE list_contains($client_ids, client_session);
