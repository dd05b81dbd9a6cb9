-- Was one session recorded, and how many of its records were dropped? No row if it was not.
SELECT (SELECT coalesce(sum(dropped), 0)::BIGINT FROM session_ends WHERE session_id = $session_id) AS dropped
FROM (
    SELECT 1 FROM session_starts WHERE session_id = $session_id
    UNION ALL SELECT 1 FROM usage WHERE session_id = $session_id
    LIMIT 1
);
