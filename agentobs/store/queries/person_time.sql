-- How long was a person active in each session, and how long did the agent wait for the person?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only waits that ended from the first time on and before
-- the second, or NULL. The latest session first. A person counts as active for at most five minutes of each wait, see the
-- view person_activity.
SELECT
    activity.session_id,
    any_value(sessions.name) AS name,
    count(*) FILTER (WHERE kind = 'prompt') AS prompts,
    count(*) FILTER (WHERE kind = 'approval') AS approvals,
    sum(wait_ns)::BIGINT AS wait_ns,
    (sum(active_ns) FILTER (WHERE kind = 'prompt'))::BIGINT AS prompt_active_ns,
    (sum(active_ns) FILTER (WHERE kind = 'approval'))::BIGINT AS approval_active_ns,
    sum(active_ns)::BIGINT AS active_ns
FROM person_activity AS activity
LEFT JOIN (
    SELECT session_id, arg_min(name, started_ns) AS name, min(started_ns) AS started_ns
    FROM session_starts
    GROUP BY session_id
) AS sessions ON activity.session_id = sessions.session_id
WHERE
    ($session_id::VARCHAR IS NULL OR activity.session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR ended_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR ended_ns < $until_ns::BIGINT)
GROUP BY activity.session_id
ORDER BY max(sessions.started_ns) DESC, activity.session_id;
