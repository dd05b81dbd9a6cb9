-- How large was the context of each request of a session, and where was the conversation compacted?
--
-- $session_id: the session. One row for each request with a token count, in order. Auxiliary requests of a lane
-- (compaction, hooks, classifiers) are excluded, because they are not part of its conversation. context_tokens is the
-- size of the complete prompt: input, cache reads and cache writes. window_tokens is the size of the context window as
-- recorded by the agentobs loop, else determined by the model's name, else NULL. compacted is the reason for a
-- compaction since the previous request of the lane, and was_tokens the number of tokens before the compaction; both
-- are NULL if there was none.
WITH prompts AS (
    SELECT
        attempt_id,
        arg_max(canonical_model, iteration) AS canonical,
        arg_max(input_tokens, iteration) AS input_tokens,
        arg_max(cache_read_tokens, iteration) AS cache_read_tokens,
        arg_max(cache_write_tokens, iteration) AS cache_write_tokens
    FROM costs
    WHERE session_id = $session_id::VARCHAR
    GROUP BY attempt_id
), recorded_windows AS (
    SELECT lane, at_ns, numbers['window'] AS window_tokens
    FROM events
    WHERE session_id = $session_id::VARCHAR AND kind = 'context' AND numbers['window'] IS NOT NULL
), requests AS (
    SELECT
        attempts.lane, attempts.turn, attempts.attempt_id, attempts.started_ns,
        coalesce(attempts.model, attempts.model_requested) AS model, prompts.* EXCLUDE (attempt_id),
        input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens AS context_tokens,
        lag(attempts.started_ns) OVER (PARTITION BY attempts.lane ORDER BY attempts.started_ns, attempts.attempt_id)
            AS before_ns
    FROM attempts
    JOIN prompts ON attempts.attempt_id = prompts.attempt_id
    WHERE
        attempts.session_id = $session_id::VARCHAR AND attempts.makes_turns
        AND coalesce(attempts.query_source IN ('main', 'sub_agent'), true)
), shorter AS (
    SELECT
        requests.attempt_id, arg_max(compactions.label, compactions.at_ns) AS compacted,
        try_cast(arg_max(compactions.numbers['tokens_before'], compactions.at_ns) AS HUGEINT) AS was_tokens
    FROM requests
    JOIN events AS compactions
        ON compactions.session_id = $session_id::VARCHAR AND compactions.kind = 'compaction' AND compactions.lane = requests.lane
        AND compactions.at_ns <= requests.started_ns AND (requests.before_ns IS NULL OR compactions.at_ns > requests.before_ns)
    GROUP BY requests.attempt_id
)
SELECT
    requests.lane,
    requests.turn,
    requests.attempt_id,
    requests.started_ns,
    requests.model,
    requests.input_tokens,
    requests.cache_read_tokens,
    requests.cache_write_tokens,
    requests.context_tokens,
    coalesce(try_cast(recorded_windows.window_tokens AS BIGINT), model_windows.window_tokens) AS window_tokens,
    shorter.compacted,
    shorter.was_tokens
FROM requests
ASOF LEFT JOIN recorded_windows ON requests.lane = recorded_windows.lane AND requests.started_ns >= recorded_windows.at_ns
LEFT JOIN model_windows ON requests.canonical = model_windows.model
LEFT JOIN shorter ON requests.attempt_id = shorter.attempt_id
ORDER BY requests.started_ns, requests.lane, requests.attempt_id;
