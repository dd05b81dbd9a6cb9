-- In which states was the workspace of a session, oldest first?
--
-- $session_id: the session. One row for the start, for each request, and for the end; only sessions that record files
-- have rows.
SELECT
    source, lane, turn, attempt_id, at_ns, state, workspace_id, files, bytes, uncaptured, changes, is_stable, late, failure,
    repository IS NOT NULL AS has_repository, commit
FROM workspace_states
WHERE session_id = $session_id::VARCHAR
ORDER BY at_ns, source = 'end', state, attempt_id;
