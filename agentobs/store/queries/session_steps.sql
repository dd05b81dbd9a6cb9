-- What did a session do, step by step: requests to the provider, tool calls, decisions about them?
--
-- $session_id: the session. The row of a request has its duration and cost; bytes are the sizes of the request and the
-- response. calls are the tools that the client must run; runs_on is where the tool of a call ran. estimated_ns is the
-- duration of a call according to the requests, if its run was not recorded.
WITH spent AS (
    SELECT
        attempt_id,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        sum(cache_write_tokens) AS cache_write_tokens,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) AS cost_status
    FROM audited_costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), changed AS (
    -- Who changed the input of a call: hooks, or a person with the approval.
    SELECT lane, turn, labels['tool_use_id'] AS tool_use_id, string_agg(DISTINCT labels['by'], ' ' ORDER BY labels['by']) AS changed_by
    FROM events
    WHERE session_id = $session_id::VARCHAR AND kind = 'rewritten' AND label = 'input'
    GROUP BY ALL
), called AS (
    SELECT attempt_id, string_agg(name, ' ' ORDER BY ordinal) AS calls
    FROM tool_calls
    WHERE session_id = $session_id::VARCHAR AND runs_on = 'client'
    GROUP BY attempt_id
), steps AS (
    SELECT
        'request' AS kind, attempts.lane, attempts.turn, attempts.attempt_id AS id, attempts.endpoint AS name,
        coalesce(attempts.model, attempts.model_requested) AS model, attempts.stop_reason,
        CASE
            WHEN attempts.outcome = 'ok' THEN 'ok'
            ELSE concat_ws(' ', attempts.outcome, attempts.status, attempts.error_type)
        END AS outcome,
        called.calls, NULL::BIGINT AS input_bytes, NULL::BIGINT AS result_bytes,
        attempts.started_ns, attempts.duration_ns, 0 AS place, attempts.session_sequence AS ordinal,
        spent.input_tokens, spent.output_tokens, spent.cache_read_tokens, spent.cache_write_tokens, spent.cost_usd,
        spent.cost_status
    FROM attempts
    LEFT JOIN spent ON attempts.attempt_id = spent.attempt_id
    LEFT JOIN called ON attempts.attempt_id = called.attempt_id
    WHERE attempts.session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    -- A call comes after the response that contains it, and the decision comes before the execution of the call.
    SELECT
        'tool_call' AS kind, lane, turn, tool_use_id AS id, name, nullif(concat_ws(' ', outcome, error_code), '') AS outcome,
        runs_on, input_bytes, result_bytes,
        requested_ns AS started_ns, duration_ns, estimated_ns, 2 AS place, ordinal, changed_by
    FROM tool_calls
    LEFT JOIN changed USING (lane, turn, tool_use_id)
    WHERE session_id = $session_id::VARCHAR
    UNION ALL BY NAME
    SELECT
        'decision' AS kind, decided.lane, decided.turn, decided.tool_use_id AS id, decided.tool AS name,
        concat_ws(
            ' ', decided.behavior, decided.reason_type, decided.source, nullif(decided.resolver, decided.reason_type)
        ) AS outcome,
        coalesce(min(calls.requested_ns), min(decided.at_ns)) AS started_ns, min(decided.approval_wait_ns) AS duration_ns,
        1 AS place, min(calls.ordinal) AS ordinal
    FROM permissions AS decided
    LEFT JOIN tool_calls AS calls
        ON decided.session_id = calls.session_id AND decided.tool_use_id = calls.tool_use_id
            AND decided.lane = calls.lane
    WHERE decided.session_id = $session_id::VARCHAR
    GROUP BY ALL
)
SELECT * FROM steps
-- The calls of a response are in order, each with its decision.
ORDER BY started_ns, CASE WHEN place = 0 THEN 0 ELSE 1 END, ordinal, place, id;
