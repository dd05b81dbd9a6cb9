-- Which requests are the first turns of sessions, those of the main agent first? Requests that are not turns follow.
--
-- $session_ids: a list of IDs. $most: the maximum number of requests of each session. Sessions whose content was pruned
-- have no rows.
SELECT session_id, segment_id, request_content, row_number() OVER first_ones AS place
FROM attempts
WHERE
    session_id IN (SELECT unnest($session_ids::VARCHAR[]))
    AND (makes_turns OR method = 'POST')
    AND request_content IS NOT NULL
    AND session_id NOT IN (SELECT session_id FROM prunings)
WINDOW first_ones AS (PARTITION BY session_id ORDER BY makes_turns DESC, lane = 'main' DESC, started_ns, sequence)
QUALIFY place <= $most::BIGINT
ORDER BY session_id, place;
