-- How much more was paid because prompts were not read from the cache, by reason?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. One row for each reason and its source, as in cache_losses. unpriced_calls is the number of calls
-- without a price, which are not included in the cost.
SELECT
    reason,
    reason_source,
    count(*) AS calls,
    count(DISTINCT session_id) AS sessions,
    sum(missed_tokens) AS missed_tokens,
    sum(wasted_usd) AS wasted_usd,
    count(*) FILTER (WHERE wasted_usd IS NULL) AS unpriced_calls
FROM cache_losses
WHERE
    missed_tokens > 0
    AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
GROUP BY reason, reason_source
ORDER BY sum(wasted_usd) DESC NULLS LAST, reason, reason_source;
