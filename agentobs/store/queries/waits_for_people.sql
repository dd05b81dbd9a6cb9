-- How long did the agent wait for approval?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only waits that ended from the first time on and
-- before the second, or NULL. One row for each tool and resolver; the tool `budget` means requests to continue
-- beyond a budget. unanswered is the number of waits that had not ended when the process ended; they have no duration.
-- Percentiles are exact. The last five columns count the answers by duration.
WITH waits AS (
    SELECT session_id, tool AS about, resolver, behavior = 'deny' AS is_denied, approval_wait_ns AS waited_ns, at_ns
    FROM permissions
    WHERE approval_requested
    UNION ALL
    SELECT
        session_id, coalesce(label, 'unknown') AS about,
        CASE WHEN status IN ('open', 'orphan', 'orphaned') THEN 'unattended' ELSE 'person' END AS resolver, NULL AS is_denied,
        CASE WHEN status NOT IN ('open', 'orphan', 'orphaned') THEN duration_ns END AS waited_ns, started_ns AS at_ns
    FROM spans
    WHERE name = 'blocked_on_user' AND (label = 'budget' OR status IN ('open', 'orphan', 'orphaned'))
)
SELECT
    about,
    resolver,
    count(waited_ns) AS answered,
    count(*) FILTER (WHERE waited_ns IS NULL) AS unanswered,
    count(*) FILTER (WHERE is_denied) AS denied,
    quantile_disc(waited_ns, 0.5) AS p50_ns,
    quantile_disc(waited_ns, 0.9) AS p90_ns,
    quantile_disc(waited_ns, 0.99) AS p99_ns,
    max(waited_ns) AS max_ns,
    sum(waited_ns) AS total_ns,
    count(*) FILTER (WHERE waited_ns < 1000000000) AS under_1s,
    count(*) FILTER (WHERE waited_ns >= 1000000000 AND waited_ns < 10000000000) AS under_10s,
    count(*) FILTER (WHERE waited_ns >= 10000000000 AND waited_ns < 60000000000) AS under_1min,
    count(*) FILTER (WHERE waited_ns >= 60000000000 AND waited_ns < 600000000000) AS under_10min,
    count(*) FILTER (WHERE waited_ns >= 600000000000) AS longer
FROM waits
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY about, resolver
ORDER BY total_ns DESC NULLS LAST, about, resolver;
