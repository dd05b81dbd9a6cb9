-- For which failure signatures does a session have the required data?
--
-- $session_id: the session. If a count is 0, or less than the count that includes it, the absence of a finding means
-- nothing. This is also the case if hook events were sampled or are missing. recorded_interactions are those of the
-- agentobs loop, and logged_interactions are those that were imported from the log of another client.
SELECT
    (SELECT count(*) FROM tool_uses WHERE session_id = $session_id::VARCHAR) AS calls,
    (
        SELECT count(*) FROM tool_uses WHERE session_id = $session_id::VARCHAR AND input_similarity IS NOT NULL
    ) AS compared_calls,
    (SELECT count(*) FROM costs WHERE session_id = $session_id::VARCHAR) AS priceable_calls,
    (SELECT count(cost_usd) FROM costs WHERE session_id = $session_id::VARCHAR) AS priced_calls,
    CASE WHEN is_imported THEN 0 ELSE interactions END AS recorded_interactions,
    CASE WHEN is_imported THEN interactions ELSE 0 END AS logged_interactions,
    (
        SELECT count(*) FROM tool_results WHERE session_id = $session_id::VARCHAR AND source = 'wire' AND is_error
    ) AS wire_errors,
    (
        SELECT count(*) FROM tool_results
        WHERE session_id = $session_id::VARCHAR AND source = 'wire' AND is_error AND error_kind IS NOT NULL
    ) AS sorted_errors,
    (
        SELECT count(*) FROM session_starts
        WHERE session_id = $session_id::VARCHAR AND session_sequence IS NULL
    ) AS older_starts,
    (SELECT count(*) FROM events WHERE session_id = $session_id::VARCHAR AND kind = 'hook') AS recorded_hooks,
    (
        SELECT count(*) FROM events WHERE session_id = $session_id::VARCHAR AND kind = 'hook' AND rate < 1
    ) AS sampled_hooks,
    (SELECT count(*) FROM world_answers WHERE session_id = $session_id::VARCHAR AND kind = 'hook') AS hook_answers,
    (SELECT count(*) FROM zones WHERE session_id = $session_id::VARCHAR) AS seen_prompts
FROM (
    SELECT session_id FROM session_starts WHERE session_id = $session_id::VARCHAR
    UNION
    SELECT session_id FROM attempts WHERE session_id = $session_id::VARCHAR
)
CROSS JOIN (
    SELECT count(*) AS interactions FROM spans WHERE session_id = $session_id::VARCHAR AND name = 'interaction'
)
CROSS JOIN (
    SELECT coalesce(bool_or(source <> 'recorded'), false) AS is_imported
    FROM session_starts
    WHERE session_id = $session_id::VARCHAR
);
