-- In which git repository did a session start, on which branch and commit, and with uncommitted changes?
--
-- $session_id: the session. There is no row if nothing is known.
SELECT repository, branch, commit, dirty, directory FROM session_git WHERE session_id = $session_id::VARCHAR;
