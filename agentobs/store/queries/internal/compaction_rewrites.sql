-- What did the first requests after the compactions of a session write to the cache again, and what did that cost?
--
-- $session_id: the session. One row for each first request of a lane after one or more compactions, in order, as in
-- cache_losses. extra_usd is what missed_tokens cost more than reading them from the cache; NULL without a price.
SELECT
    lost.lane,
    lost.turn,
    lost.attempt_id,
    lost.missed_tokens,
    least(lost.missed_tokens, written.tokens) AS written_tokens,
    lost.wasted_usd AS extra_usd
FROM cache_losses AS lost
JOIN (
    SELECT attempt_id, try_cast(sum(cache_write_tokens) AS BIGINT) AS tokens
    FROM costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
) AS written ON lost.attempt_id = written.attempt_id
WHERE lost.session_id = $session_id::VARCHAR AND lost.reason = 'compaction'
ORDER BY lost.at_ns, lost.attempt_id;
