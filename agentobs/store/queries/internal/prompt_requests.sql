-- Which requests of one session contain a new prompt: the first requests of lanes and of interactions?
--
-- $session_id: the session. is_first: no earlier request of the lane succeeded, so that all of its messages are new.
WITH sent AS (
    SELECT
        attempt_id, segment_id, request_content, session_sequence,
        coalesce(llm_request_id, attempt_id) AS request_id,
        coalesce(bool_or(outcome = 'ok') OVER (
            PARTITION BY lane ORDER BY started_ns, session_sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), false) AS is_later,
        first_value(coalesce(llm_request_id, attempt_id)) OVER (
            PARTITION BY interaction_id, lane ORDER BY started_ns, session_sequence
        ) AS first_request_id
    FROM attempts
    WHERE session_id = $session_id::VARCHAR
)
SELECT attempt_id, segment_id, request_content, NOT is_later AS is_first
FROM sent
WHERE request_content IS NOT NULL AND (NOT is_later OR request_id = first_request_id)
ORDER BY segment_id, session_sequence;
