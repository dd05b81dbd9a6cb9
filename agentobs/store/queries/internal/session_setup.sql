-- With what was one session made: which program, versions, tags and code?
--
-- $session_id: the session. A value that was not recorded is NULL. As in `sessions`, its first start counts.
SELECT
    starts.name,
    starts.entry,
    starts.source,
    nullif(starts.agentobs_version, 'unknown') AS agentobs_version,
    starts.sdk_version,
    nullif(starts.python_version, 'unknown') AS python_version,
    nullif(starts.platform, 'unknown') AS platform,
    git.repository,
    git.branch,
    git.commit,
    git.dirty,
    git.directory,
    starts.tags
FROM (SELECT $session_id::VARCHAR AS session_id) AS chosen
LEFT JOIN session_starts AS starts ON chosen.session_id = starts.session_id
LEFT JOIN session_git AS git ON chosen.session_id = git.session_id
ORDER BY starts.started_ns
LIMIT 1;
