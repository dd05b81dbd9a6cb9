-- Which sessions have content that can be searched, newest first?
--
-- $session_ids: only these sessions, or NULL. stamp changes when a session gets more content. title is the digest of the
-- title that was set last, or NULL.
WITH texts AS (
    SELECT session_id, count(*) || ':' || coalesce(sum(response_bytes), 0) AS stamp, min(started_ns) AS started_ns
    FROM attempts
    WHERE request_content IS NOT NULL
        AND ($session_ids::VARCHAR[] IS NULL OR session_id IN (SELECT unnest($session_ids::VARCHAR[])))
    GROUP BY session_id
), titled AS (
    SELECT session_id, arg_max(title, (at_ns, segment_id, sequence)) AS title, max(at_ns) AS at_ns
    FROM session_titles
    WHERE $session_ids::VARCHAR[] IS NULL OR session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    GROUP BY session_id
)
SELECT coalesce(texts.session_id, titled.session_id) AS session_id, coalesce(texts.stamp, '') AS stamp, titled.title
FROM texts
FULL JOIN titled ON texts.session_id = titled.session_id
WHERE coalesce(texts.session_id, titled.session_id) NOT IN (SELECT session_id FROM prunings)
ORDER BY coalesce(texts.started_ns, titled.at_ns) DESC, 1;
