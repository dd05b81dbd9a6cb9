-- What happened during each interaction of a session, when, and as part of which operation?
--
-- $session_id: the session. The first row of an interaction is the interaction itself, without a parent. part is the
-- category of the time that no child covers: `model`, `tool`, `queued`, `person`, `retry_wait`, `hook` or `own`; NULL
-- for a span that the agentobs loop did not open, which has the category of its parent. ended_ns is NULL if the end is
-- unknown. timing_source is `spans` if the agentobs loop recorded the interaction, `log` if it was imported from the log
-- of another client, and `wire` if it was derived from the requests of another client. For `wire`, the time from a
-- response with tool calls to the request with their results counts as tool time, because the client's own part of it is
-- unknown. A call that started a sub-agent contains the requests and calls of its lane, and lasts as long as they do,
-- unless its run was recorded. The rest of it is own time. Only for `spans`, approval waits are known and not part of the
-- tool time.
WITH windows AS (
    SELECT interaction_id, any_value(lane) AS lane, min(started_ns) AS started_ns, max(ended_ns) AS ended_ns
    FROM interactions
    WHERE session_id = $session_id::VARCHAR
    GROUP BY interaction_id
), traced AS (
    SELECT *
    FROM spans
    WHERE session_id = $session_id::VARCHAR AND trace_id IN (SELECT interaction_id FROM windows)
), with_spans AS (
    SELECT DISTINCT trace_id AS interaction_id FROM traced WHERE name = 'interaction'
), ran AS (
    -- If the run time of tools is known, the rest of a call is own time: decisions, and processing of the result.
    SELECT DISTINCT trace_id AS interaction_id FROM traced WHERE name = 'execution'
), tried AS (
    SELECT
        *,
        lag(started_ns + duration_ns) OVER (PARTITION BY llm_request_id ORDER BY attempt, started_ns) AS before_ns
    FROM attempts
    WHERE session_id = $session_id::VARCHAR AND interaction_id IS NOT NULL
), active AS (
    SELECT lane, min(started_ns) AS started_ns, max(started_ns + duration_ns) AS ended_ns FROM tried GROUP BY lane
), derived_calls AS MATERIALIZED (
    SELECT
        calls.interaction_id, format('call {} of {}', calls.ordinal, calls.attempt_id) AS id,
        calls.interaction_id AS parent_id, calls.lane, 'tool' AS name, calls.name AS label,
        CASE WHEN active.lane IS NULL THEN 'tool' ELSE 'own' END AS part, active.lane AS agent_lane,
        coalesce(
            calls.started_ns,
            CASE WHEN active.started_ns BETWEEN calls.requested_ns AND calls.result_ns THEN active.started_ns END,
            calls.requested_ns
        ) AS started_ns,
        CASE
            WHEN calls.source = 'run' THEN calls.started_ns + calls.duration_ns
            WHEN active.ended_ns BETWEEN calls.requested_ns AND calls.result_ns THEN active.ended_ns
            ELSE calls.result_ns
        END AS ended_ns
    FROM tool_calls AS calls
    LEFT JOIN active ON active.lane = calls.lane || '/' || calls.tool_use_id
    WHERE
        calls.session_id = $session_id::VARCHAR
        AND calls.interaction_id IN (SELECT interaction_id FROM windows)
        AND calls.interaction_id NOT IN (SELECT interaction_id FROM with_spans)
        AND calls.result_ns IS NOT NULL
        -- The provider runs its tools within the request, which counts as model time.
        AND calls.runs_on = 'client'
), nodes AS (
    SELECT
        interaction_id, interaction_id AS id, NULL::VARCHAR AS parent_id, lane, 'interaction' AS name,
        NULL::VARCHAR AS label, 'own' AS part, started_ns, ended_ns
    FROM windows
    UNION ALL BY NAME
    SELECT
        trace_id AS interaction_id, span_id AS id, coalesce(parent_span_id, trace_id) AS parent_id, lane, name, label,
        CASE
            WHEN name = 'llm_request' THEN 'model'
            WHEN name = 'execution' THEN 'tool'
            WHEN name = 'tool' AND trace_id NOT IN (SELECT interaction_id FROM ran) THEN 'tool'
            WHEN name = 'blocked_on_user' THEN 'person'
            WHEN name IN ('queued', 'retry_wait', 'hook') THEN name
            WHEN name IN ('interaction', 'tool', 'sub_agent', 'compaction') THEN 'own'
        END AS part,
        started_ns,
        -- The recorded end of an orphaned span is much later than its real end, so use its last activity.
        CASE WHEN status = 'orphaned' THEN coalesce(last_activity_ns, started_ns) ELSE ended_ns END AS ended_ns
    FROM traced
    UNION ALL BY NAME
    SELECT
        interaction_id, attempt_id AS id, span_id AS parent_id, lane, 'attempt' AS name,
        coalesce(model, model_requested) AS label, 'model' AS part, started_ns, started_ns + duration_ns AS ended_ns
    FROM tried
    WHERE span_id IS NOT NULL
    UNION ALL BY NAME
    SELECT
        interaction_id, 'before ' || attempt_id AS id, coalesce(span_id, interaction_id) AS parent_id, lane,
        'retry_wait' AS name, coalesce(error_type, outcome) AS label, 'retry_wait' AS part, before_ns AS started_ns,
        started_ns AS ended_ns
    FROM tried
    WHERE before_ns < started_ns
    UNION ALL BY NAME
    SELECT * EXCLUDE (agent_lane) FROM derived_calls
), agent_calls AS (
    -- The calls in which the operations of a lane may have happened: those of its own agent and of the agents above it.
    SELECT lanes.lane, calls.* EXCLUDE (lane)
    FROM (SELECT DISTINCT lane FROM nodes) AS lanes
    JOIN derived_calls AS calls ON starts_with(lanes.lane || '/', calls.agent_lane || '/')
), placed AS (
    SELECT
        nodes.* REPLACE (
            CASE
                -- A span of the user's code that encloses the operation, in the same lane.
                WHEN above.lane = nodes.lane THEN nodes.parent_id
                ELSE coalesce(
                    (
                        -- A sub-agent that continues after its call ended is not part of it.
                        SELECT arg_max(calls.id, length(calls.agent_lane))
                        FROM agent_calls AS calls
                        WHERE
                            calls.interaction_id = nodes.interaction_id AND calls.lane = nodes.lane
                            AND calls.started_ns <= nodes.started_ns
                            AND calls.ended_ns >= coalesce(nodes.ended_ns, nodes.started_ns)
                    ),
                    nodes.parent_id
                )
            END AS parent_id
        )
    FROM nodes
    LEFT JOIN traced AS above ON above.span_id = nodes.parent_id AND above.trace_id = nodes.interaction_id
)
SELECT
    placed.*,
    CASE
        WHEN with_spans.interaction_id IS NULL THEN 'wire'
        WHEN EXISTS (
            FROM session_starts WHERE session_id = $session_id::VARCHAR AND coalesce(source, 'recorded') <> 'recorded'
        ) THEN 'log'
        ELSE 'spans'
    END AS timing_source
FROM placed
JOIN windows USING (interaction_id)
LEFT JOIN with_spans USING (interaction_id)
ORDER BY windows.started_ns, interaction_id, parent_id NULLS FIRST, placed.started_ns, id;
