-- Which sessions failed, why, and at which step?
--
-- $since_ns, $until_ns: only sessions that ended from the first time on and before the second, or NULL. $cause: only
-- failures whose summary contains this text in upper or lower case, or NULL. $limit: the maximum number of rows, or
-- NULL for all. The latest come first.
SELECT failures.session_id, sessions.name, failures.* EXCLUDE (session_id)
FROM failures
JOIN sessions ON failures.session_id = sessions.session_id
WHERE
    ($since_ns::BIGINT IS NULL OR failures.at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR failures.at_ns < $until_ns::BIGINT)
    AND ($cause::VARCHAR IS NULL OR contains(lower(failures.summary), lower($cause::VARCHAR)))
ORDER BY failures.at_ns DESC, failures.session_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
