-- Which usage was billed to one session only, oldest first?
SELECT u.*
FROM usage AS u
WHERE session_id = $session_id AND billed AND (batch_result_id IS NULL OR NOT EXISTS (
    -- A batch result belongs to the session that fetched it first.
    FROM usage AS o
    WHERE o.batch_result_id = u.batch_result_id AND o.iteration = u.iteration AND o.billed
        AND o.session_id <> u.session_id
        AND (o.at_ns, o.attempt_id, o.segment_id, o.sequence) < (u.at_ns, u.attempt_id, u.segment_id, u.sequence)
))
ORDER BY at_ns, attempt_id, segment_id, sequence;
