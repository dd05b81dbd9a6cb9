-- What are the digests of the parts of the prompts of one session?
--
-- $session_id: the session. Equal digests mean equal content within one home. messages is NULL unless the request is the
-- first one of its lane, because later requests repeat IDs of calls, which are new in each session.
WITH sent AS (
    SELECT
        attempt_id,
        coalesce(bool_or(outcome = 'ok') OVER (
            PARTITION BY lane ORDER BY started_ns, session_sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), false) AS is_later
    FROM attempts
    WHERE session_id = $session_id::VARCHAR
)
SELECT
    attempt_id,
    nullif(concat_ws(' ', system, system_dynamic), '') AS system_prompt,
    tools,
    parameters,
    betas AS beta_headers,
    CASE WHEN NOT is_later THEN messages END AS messages
FROM zones
LEFT JOIN sent USING (attempt_id)
WHERE session_id = $session_id::VARCHAR;
