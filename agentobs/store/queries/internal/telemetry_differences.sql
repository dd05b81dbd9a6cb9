-- About how many requests of these client sessions do recorded sessions and telemetry disagree?
SELECT count(*) FROM telemetry_differences WHERE list_contains($client_ids, client_session);
