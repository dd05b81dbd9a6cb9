-- Which calls of a session paid more because their prompts were not read from the cache, and why?
--
-- $session_id: the session. $limit: the maximum number of rows, or NULL for all. One row for each call, as in
-- cache_losses, the most expensive first. The columns about the comparison with the previous request are NULL if no
-- tokens were paid for again.
SELECT
    lane, attempt_id, at_ns, model, gap_ns, missed_tokens, wasted_usd AS extra_usd, reason,
    changed_message, reason_source, zones_changed, turn, compared_turn
FROM cache_losses
WHERE session_id = $session_id::VARCHAR AND missed_tokens > 0
ORDER BY wasted_usd DESC NULLS LAST, at_ns, attempt_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
