-- Why tool calls, attempts, interactions and sessions failed.

CREATE OR REPLACE VIEW errors AS
SELECT
    results.session_id,
    results.result_ns AS at_ns,
    coalesce(calls.lane, results.lane) AS lane,
    coalesce(calls.turn, results.turn) AS turn,
    'tool_call' AS kind,
    coalesce(calls.name, results.tool) AS name,
    results.error_origin,
    results.error_class,
    results.error_file,
    results.error_line,
    CASE results.outcome WHEN 'duplicate' THEN 'deduplicated' ELSE results.outcome END AS outcome,
    NULL::BIGINT AS status,
    NULL::VARCHAR AS request_id,
    NULL::VARCHAR AS limit_hit,
    coalesce(calls.attempt_id, results.attempt_id) AS attempt_id,
    results.tool_use_id AS id,
    'client' AS runs_on
FROM tool_results AS results
LEFT JOIN answered_calls AS answered
    ON results.session_id = answered.session_id AND results.segment_id = answered.segment_id
    AND results.sequence = answered.sequence
LEFT JOIN tool_uses AS calls
    ON answered.session_id = calls.session_id AND answered.attempt_id = calls.attempt_id
    AND answered.ordinal = calls.ordinal
WHERE results.is_error OR results.outcome IN ('denied', 'blocked')
UNION ALL
SELECT
    results.session_id, results.result_ns, coalesce(calls.lane, results.lane), coalesce(calls.turn, results.turn),
    'tool_call', calls.name, 'returned', results.error_code, NULL, NULL, results.outcome, NULL, NULL, NULL,
    coalesce(results.attempt_id, results.result_attempt_id), results.tool_use_id,
    CASE WHEN results.by_client THEN 'client' ELSE 'provider' END
FROM provider_tool_results AS results
LEFT JOIN provider_tool_uses AS calls
    ON results.session_id = calls.session_id AND results.attempt_id = calls.attempt_id
    AND results.ordinal = calls.ordinal
WHERE results.is_error
-- Several streams of a managed agent may contain the same result.
QUALIFY results.ordinal IS NULL OR row_number() OVER (
    PARTITION BY results.session_id, results.attempt_id, results.ordinal
    ORDER BY results.result_ns, results.segment_id, results.sequence
) = 1
UNION ALL
SELECT
    session_id, started_ns + duration_ns, lane, turn, 'attempt', coalesce(model, model_requested, endpoint),
    CASE WHEN status IS NULL THEN 'raised' ELSE 'returned' END, error_type, NULL, NULL, outcome,
    status, request_id, limit_hit, attempt_id, attempt_id, NULL
FROM attempts
WHERE outcome NOT IN ('ok', 'cancelled')
UNION ALL
SELECT
    session_id, ended_ns, lane, NULL, 'interaction', NULL, NULL, NULL, NULL, NULL, result, NULL, NULL, NULL, NULL, interaction_id, NULL
FROM interaction_ends
WHERE is_error
UNION ALL
SELECT
    session_id, ended_ns, NULL, NULL, 'session', NULL, CASE WHEN error_class IS NOT NULL THEN 'raised' END,
    error_class, error_file, error_line, reason, NULL, NULL, NULL, NULL, session_id, NULL
FROM session_ends
WHERE outcome = 'failed';
COMMENT ON VIEW errors IS 'One row for each error: of a tool call, of an attempt, of an interaction and of a session. A denied tool call is one, even if its result is not an error. The messages of errors are content and are not in the store.';
COMMENT ON COLUMN errors.session_id IS 'The ID of the session.';
COMMENT ON COLUMN errors.at_ns IS 'When the failed operation ended. [ns since 1970 UTC]';
COMMENT ON COLUMN errors.lane IS 'The lane: `main`, or the lane of a sub-agent; NULL for a session.';
COMMENT ON COLUMN errors.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN errors.kind IS 'What failed: `tool_call`, `attempt`, `interaction` or `session`.';
COMMENT ON COLUMN errors.name IS 'The tool; for an attempt, the model or the endpoint; else NULL.';
COMMENT ON COLUMN errors.error_origin IS 'How it failed. Of a tool call, as in tool_results: `raised`, `returned`, `refused` or `stopped`. Of a call that the provider ran: `returned`. Of an attempt: `returned` if the provider responded, else `raised`. NULL if unknown.';
COMMENT ON COLUMN errors.error_class IS 'The class of the exception, the error type of the provider, or the error code of a tool that the provider ran, such as `max_uses_exceeded`; NULL if unknown.';
COMMENT ON COLUMN errors.error_file IS 'The file of the program''s own code that raised the exception, as in tool_results; NULL if unknown.';
COMMENT ON COLUMN errors.error_line IS 'The line in that file; NULL if unknown.';
COMMENT ON COLUMN errors.outcome IS 'The outcome, as in tool_results or attempts; the result of the interaction; the reason of the session.';
COMMENT ON COLUMN errors.status IS 'The HTTP status of an attempt, or NULL.';
COMMENT ON COLUMN errors.request_id IS 'The provider''s ID of the request of an attempt, or NULL.';
COMMENT ON COLUMN errors.limit_hit IS 'The rate limit that the request of an attempt exceeded, as in attempts; NULL if there is none.';
COMMENT ON COLUMN errors.attempt_id IS 'The attempt that failed, or whose response contains the call; NULL if there is none.';
COMMENT ON COLUMN errors.id IS 'The ID of the tool call, the attempt, the interaction or the session.';
COMMENT ON COLUMN errors.runs_on IS 'Where the tool of a call ran, as in tool_calls: `client` or `provider`; NULL for other errors.';

CREATE OR REPLACE VIEW error_classes AS
SELECT session_id, error_class
FROM (
    SELECT session_id, error_type AS error_class FROM attempts WHERE outcome NOT IN ('ok', 'cancelled')
    UNION SELECT session_id, error_class FROM tool_results WHERE is_error OR outcome IN ('denied', 'blocked')
    UNION SELECT session_id, error_code FROM provider_tool_results WHERE is_error
    UNION SELECT session_id, error_class FROM session_ends WHERE outcome = 'failed'
)
WHERE error_class IS NOT NULL;
COMMENT ON VIEW error_classes IS 'The classes of the errors of each session, as in `errors`. A query of this view is faster, because it does not find the steps.';
COMMENT ON COLUMN error_classes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN error_classes.error_class IS 'The class of one or more of its errors.';

CREATE OR REPLACE VIEW failures AS
WITH ended AS (
    SELECT
        session_id,
        arg_max({'class': error_class, 'file': error_file, 'line': error_line}, ended_ns) AS error
    FROM session_ends
    GROUP BY session_id
), failed AS (
    SELECT
        sessions.session_id,
        sessions.status,
        sessions.reason,
        coalesce(sessions.ended_ns, sessions.last_activity_ns) AS at_ns,
        CASE
            WHEN sessions.status = 'crashed' THEN 'crash'
            WHEN sessions.status = 'incomplete' THEN 'unknown'
            WHEN prefix(sessions.signature, 'declared:') THEN 'declared'
            WHEN prefix(sessions.signature, 'result:') THEN 'result'
            ELSE 'exception'
        END AS cause,
        coalesce(ended.error['class'], CASE WHEN prefix(sessions.signature, 'exception:') THEN sessions.reason END)
            AS error_class,
        ended.error['file'] AS error_file,
        ended.error['line'] AS error_line
    FROM sessions
    LEFT JOIN ended ON sessions.session_id = ended.session_id
    WHERE is_failure(sessions.status)
), responded AS (
    SELECT session_id, max(started_ns) AS at_ns FROM turns GROUP BY session_id
), steps AS (
    SELECT * FROM errors WHERE kind IN ('tool_call', 'attempt')
    UNION ALL BY NAME
    -- The calls that were open when the process died.
    SELECT
        calls.session_id, calls.requested_ns AS at_ns, calls.lane, calls.turn, 'tool_call' AS kind, calls.name,
        'unfinished' AS outcome, calls.attempt_id, calls.tool_use_id AS id
    FROM tool_uses AS calls
    SEMI JOIN failed ON calls.session_id = failed.session_id AND failed.cause IN ('crash', 'unknown')
    ANTI JOIN answered_calls AS answered
        ON calls.session_id = answered.session_id AND calls.attempt_id = answered.attempt_id
        AND calls.ordinal = answered.ordinal
    ANTI JOIN attempts AS later
        ON calls.session_id = later.session_id AND later.continues_attempt_id = calls.attempt_id
), chosen AS (
    SELECT steps.*, coalesce(steps.error_class = failed.error_class, false) AS is_same
    FROM steps
    JOIN failed ON steps.session_id = failed.session_id
    LEFT JOIN responded ON steps.session_id = responded.session_id
    -- An exception is explained by an error of its class, or by an error that no response followed. After the error of
    -- a tool of the provider, the same response continues.
    WHERE
        failed.cause NOT IN ('exception', 'crash', 'unknown') OR steps.error_class = failed.error_class
        OR (steps.at_ns > coalesce(responded.at_ns, 0) AND steps.runs_on IS DISTINCT FROM 'provider')
    QUALIFY row_number() OVER (PARTITION BY steps.session_id ORDER BY is_same DESC, steps.at_ns DESC, steps.id) = 1
), described AS (
    SELECT
        failed.*,
        chosen.* EXCLUDE (session_id, at_ns, error_class, error_file, error_line, status, runs_on),
        chosen.at_ns AS step_at_ns,
        chosen.status AS step_status,
        chosen.error_class AS step_class,
        coalesce(chosen.error_file, CASE WHEN is_same THEN failed.error_file END) AS step_file,
        CASE WHEN chosen.error_file IS NULL AND is_same THEN failed.error_line ELSE chosen.error_line END AS step_line
    FROM failed
    LEFT JOIN chosen ON failed.session_id = chosen.session_id
)
SELECT
    session_id,
    at_ns,
    status,
    cause,
    reason,
    error_class,
    error_file,
    error_line,
    kind AS step_kind,
    name AS step_name,
    lane AS step_lane,
    turn AS step_turn,
    id AS step_id,
    attempt_id AS step_attempt_id,
    step_at_ns,
    error_origin AS step_origin,
    step_class,
    step_file,
    step_line,
    outcome AS step_outcome,
    step_status,
    request_id AS step_request_id,
    limit_hit AS step_limit_hit,
    concat_ws(
        '; ',
        CASE
            WHEN cause = 'crash' THEN 'the process ended without an end of the session'
            WHEN cause = 'unknown' THEN 'the end of the session was not recorded'
            WHEN cause = 'exception' AND is_same THEN NULL
            WHEN cause = 'exception' THEN concat_ws(' at ', error_class, error_file || ':' || error_line)
            WHEN cause = 'result' THEN 'ended with ' || reason
        END,
        CASE WHEN cause = 'result' AND id IS NOT NULL THEN 'last error: ' ELSE '' END
        || CASE
            WHEN id IS NOT NULL THEN concat_ws(
                ' ',
                CASE
                    -- A failed call without an error class.
                    WHEN kind = 'tool_call' AND step_class IS NULL
                        THEN concat_ws(' ', 'call', name, CASE outcome WHEN 'timeout' THEN 'timed out' ELSE outcome END)
                    -- The status of a response that was cut is that of a success.
                    WHEN kind = 'attempt' AND outcome = 'cut' THEN concat_ws(': ', 'the response was cut', step_class)
                    ELSE concat_ws(
                        ' ',
                        coalesce(step_class, outcome),
                        '(' || nullif(concat_ws(', ', step_status, limit_hit || ' limit'), '') || ')'
                    )
                END,
                CASE WHEN kind = 'attempt' THEN 'from ' WHEN step_class IS NOT NULL THEN 'in ' END || name,
                'at ' || step_file || ':' || step_line
            )
        END,
        -- The error of the step says more, so it comes first.
        CASE
            WHEN cause = 'declared' AND starts_with(reason, 'exit:') THEN 'exit code ' || substr(reason, 6)
            WHEN cause = 'declared' THEN 'declared by the agent: ' || reason
        END
    ) AS summary
FROM described;
COMMENT ON VIEW failures IS 'One row for each session that failed, crashed, or whose end was not recorded: why, and the step that failed. The step is the last error of a tool call or an attempt. If an exception ended the session, it is the last error of the same class, or an error that no response of the model followed. For a crash, it may be an operation that was open.';
COMMENT ON COLUMN failures.session_id IS 'The ID of the session.';
COMMENT ON COLUMN failures.at_ns IS 'When the session ended, or its last activity. [ns since 1970 UTC]';
COMMENT ON COLUMN failures.status IS 'The status of the session: `failed`, `crashed` or `incomplete`.';
COMMENT ON COLUMN failures.cause IS '`exception`: an exception left the session; `declared`: the agent declared the failure; `result`: the last interaction ended with an error; `crash`: the process ended first; `unknown`: the end was not recorded.';
COMMENT ON COLUMN failures.reason IS 'The reason of the session, as in sessions.';
COMMENT ON COLUMN failures.error_class IS 'The class of the exception that ended the session, or with which the agent declared the failure; NULL if there is none.';
COMMENT ON COLUMN failures.error_file IS 'The file of the program''s own code that raised the exception, as in tool_results; NULL if unknown.';
COMMENT ON COLUMN failures.error_line IS 'The line in that file; NULL if unknown.';
COMMENT ON COLUMN failures.step_kind IS 'The step that failed: `tool_call` or `attempt`; NULL if no step failed.';
COMMENT ON COLUMN failures.step_name IS 'The tool; for an attempt, the model or the endpoint; NULL if no step failed.';
COMMENT ON COLUMN failures.step_lane IS 'The lane of the step; NULL if no step failed.';
COMMENT ON COLUMN failures.step_turn IS 'The turn of the step; NULL if unknown.';
COMMENT ON COLUMN failures.step_id IS 'The ID of the tool call or the attempt; NULL if no step failed.';
COMMENT ON COLUMN failures.step_attempt_id IS 'The attempt that failed, or whose response contains the call; NULL if unknown.';
COMMENT ON COLUMN failures.step_at_ns IS 'When the step ended, or started if it is unfinished; NULL if no step failed. [ns since 1970 UTC]';
COMMENT ON COLUMN failures.step_origin IS 'How the step failed, as in errors; NULL if unknown.';
COMMENT ON COLUMN failures.step_class IS 'The error of the step, as in errors.error_class; NULL if unknown.';
COMMENT ON COLUMN failures.step_file IS 'The file of the program''s own code that raised the exception; NULL if unknown.';
COMMENT ON COLUMN failures.step_line IS 'The line in that file; NULL if unknown.';
COMMENT ON COLUMN failures.step_outcome IS 'The outcome of the step, as in errors; `unfinished` for a tool call that was open when the process ended.';
COMMENT ON COLUMN failures.step_status IS 'The HTTP status of the attempt, or NULL.';
COMMENT ON COLUMN failures.step_request_id IS 'The provider''s ID of the request of the attempt, or NULL.';
COMMENT ON COLUMN failures.step_limit_hit IS 'The rate limit that the request of the attempt exceeded; NULL if there is none.';
COMMENT ON COLUMN failures.summary IS 'The cause and the step as one line of text.';
