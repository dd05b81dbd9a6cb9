-- Which request contains the prompt of each of the given interactions?
--
-- $interaction_ids: a list of IDs. Interactions without content have no rows.
SELECT interaction_id, session_id, segment_id, request_content
FROM attempts
WHERE interaction_id IN (SELECT unnest($interaction_ids::VARCHAR[])) AND request_content IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY interaction_id ORDER BY started_ns, session_sequence) = 1;
