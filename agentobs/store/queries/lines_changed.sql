-- How many lines did the edit tools of each session add and remove?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls whose result was available from the first
-- time on and before the second, or NULL. One row for each session and tool, the latest session first. lines_added and
-- lines_removed are sums of the known numbers, NULL if none is known; the last two columns count the calls without them.
SELECT
    changes.session_id,
    any_value(sessions.name) AS name,
    changes.name AS tool,
    count(*) AS calls,
    sum(lines_added) AS lines_added,
    sum(lines_removed) AS lines_removed,
    count(*) FILTER (WHERE lines_added IS NULL) AS added_unknown,
    count(*) FILTER (WHERE lines_removed IS NULL) AS removed_unknown
FROM line_changes AS changes
LEFT JOIN (
    SELECT session_id, arg_min(name, started_ns) AS name, min(started_ns) AS started_ns
    FROM session_starts
    GROUP BY session_id
) AS sessions ON changes.session_id = sessions.session_id
WHERE
    ($session_id::VARCHAR IS NULL OR changes.session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY changes.session_id, changes.name
ORDER BY max(sessions.started_ns) DESC, changes.session_id, changes.name;
