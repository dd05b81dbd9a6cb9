-- What did caching save each session, what did misses waste, and which lifetime would have cost less?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only sessions whose last call was sent from the first
-- time on and before the second, or NULL. $limit: the maximum number of sessions, or NULL for all. usual_reason is the
-- reason of the misses that wasted most. The first requests after compactions are not misses, as in cache_losses;
-- compaction_usd is what they cost more than cache reads, and what the summaries cost.
WITH wanted AS (
    SELECT session_id, max(at_ns) AS last_ns
    FROM usage
    WHERE $session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR
    GROUP BY session_id
    HAVING
        ($since_ns::BIGINT IS NULL OR last_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR last_ns < $until_ns::BIGINT)
), losses AS (
    SELECT
        session_id,
        reason,
        reason = 'compaction' AS is_compaction,
        count(*) AS calls,
        count(*) FILTER (WHERE missed_tokens > 0) AS rewrites,
        sum(missed_tokens) AS missed_tokens,
        sum(wasted_usd) AS wasted_usd,
        sum(wasted_usd) FILTER (WHERE missed_tokens > 0) AS rewritten_usd,
        -- The reason that cost most; without prices, the most frequent one.
        row_number() OVER (
            PARTITION BY session_id ORDER BY sum(wasted_usd) NULLS FIRST, count(*), reason DESC
        ) AS rank
    FROM cache_losses
    WHERE $session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR
    GROUP BY session_id, reason
), wasted AS (
    SELECT
        session_id,
        sum(calls) FILTER (WHERE NOT is_compaction) AS misses,
        sum(missed_tokens) FILTER (WHERE NOT is_compaction) AS missed_tokens,
        sum(wasted_usd) FILTER (WHERE NOT is_compaction) AS wasted_usd,
        arg_max(reason, rank) FILTER (WHERE NOT is_compaction) AS usual_reason,
        nullif(sum(calls) FILTER (WHERE is_compaction), 0) AS compactions,
        nullif(sum(rewrites) FILTER (WHERE is_compaction), 0) AS rewrites,
        sum(rewritten_usd) FILTER (WHERE is_compaction) AS rewritten_usd
    FROM losses
    GROUP BY session_id
), summaries AS (
    SELECT session_id, count(*) AS calls, sum(cost_usd) AS usd
    FROM audited_costs
    SEMI JOIN (SELECT session_id, attempt_id FROM attempts WHERE query_source = 'compaction') AS summary
        USING (session_id, attempt_id)
    WHERE $session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR
    GROUP BY session_id
), named AS (
    SELECT session_id, arg_min(name, started_ns) AS name
    FROM session_starts
    GROUP BY session_id
)
SELECT
    wanted.session_id,
    named.name,
    efficiency.calls,
    efficiency.input_tokens,
    efficiency.cache_read_tokens,
    efficiency.cache_write_tokens,
    efficiency.hit_ratio,
    efficiency.read_saved_usd,
    efficiency.write_premium_usd,
    efficiency.saved_usd,
    coalesce(wasted.misses, 0) AS misses,
    coalesce(wasted.missed_tokens, 0) AS missed_tokens,
    coalesce(wasted.wasted_usd, CASE WHEN wasted.misses IS NULL THEN 0 END) AS wasted_usd,
    wasted.usual_reason,
    coalesce(
        wasted.rewrites, CASE WHEN summaries.calls > 0 THEN coalesce(wasted.compactions, summaries.calls) END, 0
    ) AS compactions,
    CASE
        WHEN
            wasted.rewritten_usd IS NULL AND summaries.usd IS NULL
            AND coalesce(wasted.rewrites, summaries.calls) > 0
        THEN NULL
        ELSE coalesce(wasted.rewritten_usd, 0) + coalesce(summaries.usd, 0)
    END AS compaction_usd,
    lifetimes.gaps_over_5m,
    lifetimes.gaps_over_1h,
    lifetimes.cache_usd,
    lifetimes.cache_5m_usd,
    lifetimes.cache_1h_usd,
    lifetimes.better,
    efficiency.cost_usd,
    efficiency.cost_status,
    efficiency.unpriced_calls
FROM wanted
JOIN cache_efficiency AS efficiency ON wanted.session_id = efficiency.session_id
LEFT JOIN wasted ON wanted.session_id = wasted.session_id
LEFT JOIN summaries ON wanted.session_id = summaries.session_id
LEFT JOIN cache_lifetimes AS lifetimes ON wanted.session_id = lifetimes.session_id
LEFT JOIN named ON wanted.session_id = named.session_id
ORDER BY efficiency.cost_usd DESC NULLS LAST, wanted.session_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
