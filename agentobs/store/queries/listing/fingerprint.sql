-- What is the fingerprint of one session?
--
-- Effects are counted, because they may be recorded after the session has ended. They are not part of its row.
SELECT
    session_id,
    status,
    hash(
        fingerprint,
        (SELECT count(*) FROM command_runs WHERE session_id = $session_id::VARCHAR),
        (SELECT count(*) FROM mcp_requests WHERE session_id = $session_id::VARCHAR),
        (SELECT count(*) FROM file_changes WHERE session_id = $session_id::VARCHAR),
        (SELECT count(*) FROM workspace_states WHERE session_id = $session_id::VARCHAR),
        (SELECT count(*) FROM effect_links WHERE session_id = $session_id::VARCHAR)
    ) AS fingerprint
FROM app.listing
WHERE session_id = $session_id::VARCHAR;
