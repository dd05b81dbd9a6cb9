-- What happened in a session, when did it start and end, in which lane, and with what outcome?
--
-- $session_id: the session. kind is `session` for the session itself, which comes first; `interaction`; `sub_agent`: a
-- run of an agent that a call started; `request`: an attempt, or an LLM request whose attempts are unknown; `tool`;
-- `agent`: a call that starts an agent, whose lane is agent_lane; `queued`, `person` or `retry_wait`: a wait; `hook`;
-- `compaction`; `span`: a span that the user's code opened. lane is the lane of the agent; auxiliary requests (compaction, hooks, classifiers)
-- have the lane that they serve, and is_upkeep is true. part is the category of the time. state is `ok`, `failed`,
-- `stopped` (cancelled, denied, skipped), `open` (it may still end) or `orphaned` (it will never end). For `open` and
-- `orphaned`, ended_ns is the last activity, or NULL if that is unknown. detail is the error, or the outcome of a call.
-- Tokens are those of the complete prompt. If is_lower_bound, the response was cut, and output_tokens has only what the
-- provider had reported before. If is_estimated, ended_ns is the time of the request with the result of a call.
WITH this AS MATERIALIZED (
    SELECT * FROM sessions WHERE session_id = $session_id::VARCHAR
), is_running AS (
    SELECT status = 'running' FROM this
), is_over AS (
    SELECT status NOT IN ('running', 'crashed') FROM this
), mine AS MATERIALIZED (
    SELECT * FROM spans WHERE session_id = $session_id::VARCHAR
), tried AS MATERIALIZED (
    SELECT
        *,
        coalesce(query_source NOT IN ('main', 'sub_agent'), false) AND contains(lane, '/') AS is_upkeep,
        lag(started_ns + duration_ns) OVER attempts_of_call AS before_ns,
        lag(coalesce(error_type, outcome)) OVER attempts_of_call AS before_error
    FROM attempts
    WHERE session_id = $session_id::VARCHAR
    WINDOW attempts_of_call AS (PARTITION BY llm_request_id ORDER BY attempt, started_ns)
), spent AS (
    SELECT
        attempt_id,
        sum(input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens) AS prompt_tokens,
        sum(output_tokens) AS output_tokens,
        bool_or(counts_status = 'lower_bound') AS is_lower_bound
    FROM costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), last_tried AS (
    SELECT lane, max(started_ns) AS started_ns FROM tried GROUP BY lane
), calls AS MATERIALIZED (
    SELECT
        tool_calls.*,
        -- The conversation continued or the session ended without the result, so the tool probably did not run.
        tool_calls.outcome IS NULL AND (
            last_tried.started_ns > tool_calls.requested_ns OR (FROM is_over)
        ) AS is_unanswered
    FROM tool_calls
    LEFT JOIN last_tried ON tool_calls.lane = last_tried.lane
    WHERE tool_calls.session_id = $session_id::VARCHAR
), lanes AS (
    SELECT DISTINCT lane FROM tried
    UNION
    SELECT DISTINCT lane FROM mine
), started AS (
    -- If the ID of a call has an unknown form, it is a digest that is not part of the lane, so spans identify the agent.
    SELECT results.lane, results.tool_use_id, min(agents.lane) AS child_lane
    FROM tool_results AS results
    JOIN mine AS agents
        ON agents.name = 'sub_agent' AND coalesce(agents.parent_span_id, agents.linked_span_id) = results.span_id
    WHERE results.session_id = $session_id::VARCHAR
    GROUP BY results.lane, results.tool_use_id
), known AS (
    SELECT
        'session' AS kind, session_id AS id, NULL::VARCHAR AS interaction_id, NULL::VARCHAR AS lane, false AS is_upkeep,
        NULL::BIGINT AS turn, name AS label, 'own' AS part, started_ns, coalesce(ended_ns, last_activity_ns) AS ended_ns,
        CASE status
            WHEN 'completed' THEN 'ok' WHEN 'running' THEN 'open' WHEN 'crashed' THEN 'orphaned' WHEN 'failed' THEN 'failed'
            ELSE 'stopped'
        END AS state,
        reason AS detail, NULL::HUGEINT AS prompt_tokens, NULL::HUGEINT AS output_tokens
    FROM this
    UNION ALL BY NAME
    SELECT
        'interaction' AS kind, whole.interaction_id AS id, whole.interaction_id, whole.lane, mine.label, 'own' AS part,
        whole.started_ns, coalesce(whole.ended_ns, mine.ended_ns) AS ended_ns,
        CASE
            WHEN whole.ended_ns IS NULL AND (FROM is_running) THEN 'open'
            WHEN whole.ended_ns IS NULL THEN 'orphaned'
            WHEN whole.is_error THEN 'failed'
            ELSE 'ok'
        END AS state,
        whole.result AS detail
    FROM interactions AS whole
    LEFT JOIN mine
        ON mine.name = 'interaction' AND whole.interaction_id = mine.trace_id AND mine.parent_span_id IS NULL
    WHERE whole.session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT
        CASE
            WHEN name = 'llm_request' THEN 'request'
            WHEN name = 'blocked_on_user' THEN 'person'
            WHEN name IN ('sub_agent', 'queued', 'hook', 'compaction') THEN name
            ELSE 'span'
        END AS kind,
        span_id AS id, trace_id AS interaction_id, lane,
        CASE
            WHEN name IN ('sub_agent', 'llm_request', 'queued', 'blocked_on_user', 'hook', 'compaction') THEN label
            ELSE concat_ws(' ', name, label)
        END AS label,
        CASE
            WHEN name = 'llm_request' THEN 'model'
            WHEN name = 'blocked_on_user' THEN 'person'
            WHEN name IN ('queued', 'hook') THEN name
            ELSE 'own'
        END AS part,
        started_ns,
        CASE WHEN status = 'orphaned' THEN coalesce(last_activity_ns, started_ns) ELSE ended_ns END AS ended_ns,
        CASE status WHEN 'error' THEN 'failed' WHEN 'cancelled' THEN 'stopped' ELSE status END AS state,
        error_type AS detail
    FROM mine
    WHERE
        name NOT IN ('interaction', 'tool', 'execution', 'retry_wait', 'llm_request')
        OR (
            name = 'llm_request' AND span_id NOT IN (SELECT span_id FROM tried WHERE span_id IS NOT NULL)
            -- The span that the recorder adds for a client without spans: its ID is the end of the attempt's ID.
            AND span_id NOT IN (SELECT right(attempt_id, 16) FROM tried)
        )
    UNION ALL BY NAME
    SELECT
        'request' AS kind, attempt_id AS id, interaction_id, lane, is_upkeep, turn,
        coalesce(model, model_requested) AS label, 'model' AS part, started_ns, started_ns + duration_ns AS ended_ns,
        CASE
            WHEN outcome = 'ok' THEN 'ok'
            WHEN outcome = 'cancelled' THEN 'stopped'
            WHEN outcome = 'crashed' AND (FROM is_running) THEN 'open'
            WHEN outcome = 'crashed' THEN 'orphaned'
            ELSE 'failed'
        END AS state,
        CASE
            WHEN outcome = 'ok' THEN CASE WHEN NOT makes_turns THEN endpoint END
            ELSE concat_ws(' ', outcome, nullif(status, 200), error_type)
        END AS detail,
        prompt_tokens, output_tokens, is_lower_bound
    FROM tried
    LEFT JOIN spent USING (attempt_id)
    UNION ALL BY NAME
    SELECT
        'retry_wait' AS kind, 'before ' || attempt_id AS id, interaction_id, lane, is_upkeep, turn,
        before_error AS label, 'retry_wait' AS part, before_ns AS started_ns, started_ns AS ended_ns, 'ok' AS state
    FROM tried
    WHERE before_ns < started_ns
    UNION ALL BY NAME
    -- Retry backoffs that were not followed by another attempt.
    SELECT
        'retry_wait' AS kind, span_id AS id, trace_id AS interaction_id, lane, label, 'retry_wait' AS part, started_ns,
        CASE WHEN status = 'orphaned' THEN coalesce(last_activity_ns, started_ns) ELSE ended_ns END AS ended_ns,
        CASE status WHEN 'error' THEN 'failed' WHEN 'cancelled' THEN 'stopped' ELSE status END AS state,
        error_type AS detail
    FROM mine AS waited
    WHERE
        name = 'retry_wait'
        AND NOT EXISTS (
            FROM tried WHERE tried.span_id = waited.parent_span_id AND tried.started_ns >= waited.started_ns
        )
        -- The span that the recorder adds for a client without spans: its ID is the end of the next attempt's ID.
        AND waited.span_id NOT IN (SELECT right(attempt_id, 16) FROM tried)
    UNION ALL BY NAME
    SELECT
        coalesce(lanes.lane, started.child_lane) AS agent_lane,
        CASE WHEN agent_lane IS NULL THEN 'tool' ELSE 'agent' END AS kind,
        concat_ws(' ', calls.attempt_id, calls.ordinal, calls.tool_use_id) AS id, calls.interaction_id, calls.lane,
        calls.turn, calls.name AS label, CASE WHEN agent_lane IS NULL THEN 'tool' ELSE 'own' END AS part,
        coalesce(calls.started_ns, calls.requested_ns) AS started_ns,
        CASE
            WHEN calls.is_unanswered THEN calls.requested_ns
            WHEN calls.source = 'run' THEN calls.started_ns + calls.duration_ns
            ELSE calls.result_ns
        END AS ended_ns,
        CASE
            WHEN calls.is_unanswered THEN 'stopped'
            WHEN calls.outcome IS NULL AND (FROM is_running) THEN 'open'
            WHEN calls.outcome IS NULL THEN 'orphaned'
            WHEN calls.outcome IN ('denied', 'blocked', 'skipped', 'aborted') THEN 'stopped'
            WHEN calls.is_error THEN 'failed'
            ELSE 'ok'
        END AS state,
        CASE
            WHEN calls.outcome IS NULL THEN 'no result'
            WHEN calls.outcome <> 'executed' THEN calls.outcome
            WHEN calls.is_error THEN 'error'
        END AS detail,
        calls.source = 'wire' AND calls.estimated_ns IS NOT NULL AND NOT calls.is_unanswered AS is_estimated
    FROM calls
    LEFT JOIN lanes ON lanes.lane = calls.lane || '/' || calls.tool_use_id
    LEFT JOIN started ON started.lane = calls.lane AND started.tool_use_id = calls.tool_use_id
    UNION ALL BY NAME
    -- Tools that were running when the process died, and whose response was not complete yet.
    SELECT
        'tool' AS kind, span_id AS id, trace_id AS interaction_id, lane, label, 'tool' AS part, started_ns,
        coalesce(last_activity_ns, ended_ns) AS ended_ns, status AS state
    FROM mine AS ran
    WHERE
        name = 'execution' AND status IN ('open', 'orphaned') AND NOT EXISTS (
            FROM calls WHERE calls.lane = ran.lane AND calls.name = ran.label AND calls.outcome IS NULL
        )
    UNION ALL BY NAME
    -- Approval waits without a span, from older versions of agentobs.
    SELECT
        'person' AS kind, concat_ws(' ', 'approval of', decided.tool_use_id, decided.at_ns) AS id, decided.interaction_id,
        decided.lane, decided.turn, decided.tool AS label, 'person' AS part, decided.at_ns - decided.approval_wait_ns AS started_ns,
        decided.at_ns AS ended_ns, CASE WHEN decided.behavior = 'deny' THEN 'stopped' ELSE 'ok' END AS state,
        decided.resolver AS detail
    FROM permissions AS decided
    WHERE
        decided.session_id = $session_id::VARCHAR AND decided.approval_requested AND NOT EXISTS (
            FROM mine WHERE mine.name = 'blocked_on_user' AND mine.trace_id IS NOT DISTINCT FROM decided.interaction_id
        )
    UNION ALL BY NAME
    -- Clients other than the agentobs loop report compactions without a duration.
    SELECT
        'compaction' AS kind, concat_ws(' ', 'compaction', lane, at_ns) AS id, interaction_id, lane, turn, label,
        'own' AS part, at_ns AS started_ns, at_ns AS ended_ns, 'ok' AS state
    FROM events
    WHERE
        session_id = $session_id::VARCHAR AND kind = 'compaction'
        AND NOT EXISTS (FROM mine WHERE mine.name = 'compaction' AND mine.lane IS NOT DISTINCT FROM events.lane)
), placed AS (
    SELECT
        * REPLACE (
            -- The lane of a sub-agent whose call has an ID in an unknown form ends with a digest.
            coalesce(is_upkeep, false) OR coalesce(
                regexp_matches(lane, '/[a-z_]+:[^/]*$') AND NOT regexp_matches(lane, '/digest:[^/]*$'), false
            ) AS is_upkeep
        )
    FROM known
)
SELECT
    kind, id, interaction_id, CASE WHEN is_upkeep THEN regexp_replace(lane, '/[^/]*$', '') ELSE lane END AS lane, is_upkeep,
    turn, label, part, started_ns, ended_ns, state, detail, prompt_tokens, output_tokens,
    coalesce(is_lower_bound, false) AS is_lower_bound, agent_lane, coalesce(is_estimated, false) AS is_estimated
FROM placed
-- The response of a classifier or a hook may be a tool call that is not meant to be executed.
WHERE NOT (is_upkeep AND kind = 'tool' AND coalesce(detail, '') = 'no result')
-- A compaction precedes a request that starts at the same time.
ORDER BY
    kind <> 'session', started_ns, CASE kind WHEN 'interaction' THEN 0 WHEN 'compaction' THEN 1 ELSE 2 END,
    ended_ns DESC NULLS FIRST, id;
