-- Which sessions exist, newest first?
--
-- $failed: true for sessions that failed, crashed, or whose end could not be written; false for the others; NULL for
-- all. $name: only sessions with this name, or NULL. $since_ns: only sessions that started at or after this time, or
-- NULL. $session_ids: only these sessions, or NULL. $telemetry: true to include the sessions that only
-- contain telemetry, or NULL. $limit: the maximum number of rows, or NULL for all. $causes: false to leave cause empty,
-- which takes less time. cause is the summary in `failures`, or NULL. cost_status is the certainty of cost_usd, as in
-- `cost_by_session`.
WITH listed AS (
    SELECT
        session_id,
        name,
        status,
        reason,
        signature,
        started_ns,
        duration_ns,
        last_activity_ns,
        interactions,
        turns,
        llm_requests,
        attempts,
        tool_calls,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        cost_usd,
        unpriced_calls,
        dropped,
        incomplete,
        tags,
        continues_session_id,
        relation,
        forked_turn,
        replayed_requests,
        is_telemetry
    FROM sessions
    WHERE
        (NOT is_telemetry OR coalesce($telemetry::BOOLEAN, false))
        AND ($failed::BOOLEAN IS NULL OR is_failure(status) = $failed::BOOLEAN)
        AND ($name::VARCHAR IS NULL OR name = $name::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
        AND ($session_ids::VARCHAR[] IS NULL OR session_id IN (SELECT unnest($session_ids::VARCHAR[])))
    ORDER BY started_ns DESC, session_id
    LIMIT coalesce($limit::BIGINT, 9223372036854775807)
)
SELECT listed.*, found.summary AS cause, spent.cost_status
FROM listed
LEFT JOIN (
    SELECT session_id, summed_status(cost_usd, cost_status) AS cost_status
    FROM audited_costs
    WHERE session_id IN (SELECT session_id FROM listed)
    GROUP BY session_id
) AS spent ON listed.session_id = spent.session_id
LEFT JOIN (
    FROM failures
    WHERE
        coalesce($causes::BOOLEAN, true)
        AND session_id IN (SELECT session_id FROM listed WHERE is_failure(status))
) AS found ON listed.session_id = found.session_id
ORDER BY started_ns DESC, listed.session_id;
