-- What are the digests of the parts of the prompts of one session?
--
-- $session_id: the session. Equal digests mean equal content within one home.
SELECT
    attempt_id,
    nullif(concat_ws(' ', system, system_dynamic), '') AS system_prompt,
    tools,
    parameters,
    betas AS beta_headers
FROM zones
WHERE session_id = $session_id::VARCHAR;
