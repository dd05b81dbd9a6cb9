-- Which summaries of conversations were paid for and not used, why, and what did they cost?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only summaries from the first time on and before the
-- second, or NULL.
SELECT *
FROM unused_summaries
WHERE
    ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
ORDER BY at_ns, session_id, summary_lane;
