-- Which content contains the texts of the given digests, in the newest sessions with each digest?
--
-- $digests: a list of digests. $most: the maximum number of sessions for each digest.
SELECT digest, field, segment_id, content_id, row_number() OVER (PARTITION BY digest ORDER BY at_ns DESC) AS place
FROM (
    SELECT name, 'name', session_id, segment_id, arguments_content, started_ns FROM session_starts
    UNION ALL
    SELECT reason, 'reason', session_id, segment_id, end_content, ended_ns FROM session_ends
) AS written(digest, field, session_id, segment_id, content_id, at_ns)
WHERE list_contains($digests::VARCHAR[], digest) AND content_id IS NOT NULL
    AND session_id NOT IN (SELECT session_id FROM prunings)
QUALIFY place <= $most::BIGINT;
