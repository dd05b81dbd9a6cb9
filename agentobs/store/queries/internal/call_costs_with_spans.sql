-- What did each call of one session cost, and in which span and lane was it sent?
SELECT c.*, a.span_id, a.interaction_id, a.lane
FROM audited_costs AS c
LEFT JOIN (
    SELECT session_id, attempt_id, any_value(span_id) AS span_id, any_value(interaction_id) AS interaction_id,
        any_value(lane) AS lane
    FROM attempts GROUP BY session_id, attempt_id
) AS a USING (session_id, attempt_id)
WHERE c.session_id = $session_id::VARCHAR
ORDER BY c.at_ns, c.attempt_id, c.iteration;
