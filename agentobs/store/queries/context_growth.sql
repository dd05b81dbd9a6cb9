-- How large was the context of each request of a session, and where was the conversation compacted?
--
-- $session_id: the session. One row for each request with a response or a count, in order; auxiliary requests of a
-- lane (compaction, hooks, classifiers) do not belong to its conversation and are left out. context_tokens is the whole prompt: input, cache
-- reads and cache writes. window_tokens is the size of the context window: as our own loop recorded it, else by the model's name, else
-- NULL. compacted is the reason of a compaction since the previous request of the lane, and was_tokens the number of tokens
-- before it; both NULL without one.
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
), told AS (
    SELECT lane, at_ns, numbers['window'] AS window_tokens
    FROM events
    WHERE session_id = $session_id::VARCHAR AND kind = 'context' AND numbers['window'] IS NOT NULL
), asked AS (
    SELECT
        attempts.lane, attempts.turn, attempts.attempt_id, attempts.started_ns,
        coalesce(attempts.model, attempts.model_requested) AS model, prompts.* EXCLUDE (attempt_id),
        input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens AS context_tokens,
        lag(attempts.started_ns) OVER (PARTITION BY attempts.lane ORDER BY attempts.started_ns, attempts.attempt_id)
            AS before_ns
    FROM attempts
    JOIN prompts ON attempts.attempt_id = prompts.attempt_id
    WHERE
        attempts.session_id = $session_id::VARCHAR AND attempts.endpoint = '/v1/messages'
        AND coalesce(attempts.query_source IN ('main', 'sub_agent'), true)
), shorter AS (
    SELECT
        asked.attempt_id, arg_max(made.label, made.at_ns) AS compacted,
        try_cast(arg_max(made.numbers['tokens_before'], made.at_ns) AS HUGEINT) AS was_tokens
    FROM asked
    JOIN events AS made
        ON made.session_id = $session_id::VARCHAR AND made.kind = 'compaction' AND made.lane = asked.lane
        AND made.at_ns <= asked.started_ns AND (asked.before_ns IS NULL OR made.at_ns > asked.before_ns)
    GROUP BY asked.attempt_id
)
SELECT
    asked.lane,
    asked.turn,
    asked.attempt_id,
    asked.started_ns,
    asked.model,
    asked.input_tokens,
    asked.cache_read_tokens,
    asked.cache_write_tokens,
    asked.context_tokens,
    coalesce(try_cast(told.window_tokens AS BIGINT), model_windows.window_tokens) AS window_tokens,
    shorter.compacted,
    shorter.was_tokens
FROM asked
ASOF LEFT JOIN told ON asked.lane = told.lane AND asked.started_ns >= told.at_ns
LEFT JOIN model_windows ON asked.canonical = model_windows.model
LEFT JOIN shorter ON asked.attempt_id = shorter.attempt_id
ORDER BY asked.started_ns, asked.lane, asked.attempt_id;
