-- What did the first requests after the compactions of a session write to the cache again, and what did that cost?
--
-- $session_id: the session. One row for each first request of a lane after one or more compactions, in order, as in
-- context_growth. extra_usd is what these tokens cost more than reading them from the cache: the amount in cache_misses
-- if the request is a cache miss, else that of its cache writes; NULL without a price.
WITH spent AS (
    SELECT
        attempt_id,
        try_cast(sum(cache_write_tokens) AS BIGINT) AS written_tokens,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status,
        CASE WHEN count(cost_usd) = count(*) THEN sum(
            cache_write_5m_usd + cache_write_1h_usd
            - (cache_write_5m_tokens + cache_write_1h_tokens) * cache_read_usd_each
        ) END AS extra_usd
    FROM costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), requests AS (
    SELECT
        attempts.lane, attempts.turn, attempts.started_ns, spent.*,
        lag(attempts.started_ns) OVER (PARTITION BY attempts.lane ORDER BY attempts.started_ns, attempts.attempt_id)
            AS before_ns
    FROM attempts
    JOIN spent ON attempts.attempt_id = spent.attempt_id
    WHERE
        attempts.session_id = $session_id::VARCHAR AND attempts.makes_turns
        AND coalesce(attempts.query_source IN ('main', 'sub_agent'), true)
), compacted AS (
    SELECT *
    FROM requests
    WHERE EXISTS (
        SELECT 1 FROM events
        WHERE
            events.session_id = $session_id::VARCHAR AND events.kind = 'compaction' AND events.lane = requests.lane
            AND events.at_ns <= requests.started_ns
            AND (requests.before_ns IS NULL OR events.at_ns > requests.before_ns)
    )
)
SELECT
    compacted.lane,
    compacted.turn,
    compacted.attempt_id,
    compacted.written_tokens,
    compacted.cost_usd,
    compacted.cost_status,
    coalesce(missed.wasted_usd, compacted.extra_usd) AS extra_usd
FROM compacted
LEFT JOIN (SELECT attempt_id, wasted_usd FROM cache_misses WHERE session_id = $session_id::VARCHAR) AS missed
    ON compacted.attempt_id = missed.attempt_id
ORDER BY compacted.started_ns, compacted.attempt_id;
