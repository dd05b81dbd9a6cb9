-- Which zones of the prompt did one attempt change?
--
-- is_own_lane is whether the earlier attempt is one of the same lane: the first prompt of a sub-agent may have been
-- compared with the prompt of another agent.
SELECT changes.*, now.lane = compared.lane AS is_own_lane
FROM zone_changes AS changes
JOIN attempts AS now ON changes.session_id = now.session_id AND changes.attempt_id = now.attempt_id
JOIN attempts AS compared
    ON changes.session_id = compared.session_id AND changes.compared_attempt_id = compared.attempt_id
WHERE changes.session_id = $session_id::VARCHAR AND changes.attempt_id = $attempt_id::VARCHAR;
