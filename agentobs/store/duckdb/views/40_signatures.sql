-- Failure signatures. Each view contains the findings of one signature, with the measured value and the threshold. If
-- a session has no row in a view, the signature was not found. docs/diagnose.md describes the signatures.

CREATE OR REPLACE VIEW model_windows AS
SELECT unnest([
    'claude-fable-5', 'claude-fable-5-1', 'claude-fable-5-2', 'claude-haiku-5-5', 'claude-mythos-5-2', 'claude-opus-4-6',
    'claude-opus-4-7', 'claude-opus-4-8', 'claude-opus-5', 'claude-opus-5-5', 'claude-sonnet-4-6', 'claude-sonnet-5',
    'claude-sonnet-5-5'
]) AS model, 1000000::BIGINT AS window_tokens;
COMMENT ON VIEW model_windows IS 'Models with a context window of more than 200,000 tokens, as used by the loop for compaction, as of November 2026.';
COMMENT ON COLUMN model_windows.model IS 'The canonical name of the model.';
COMMENT ON COLUMN model_windows.window_tokens IS 'The size of the context window. [tokens]';

CREATE OR REPLACE VIEW repeated_calls AS
WITH likely AS (
    -- Turns are consecutive if the request of the later turn continues the response of the earlier turn.
    SELECT
        later.session_id, later.lane, later.turn, later.attempt_id, later.tool_use_id, later.name, later.requested_ns,
        later.ordinal, earlier.attempt_id AS earlier_attempt_id, earlier.tool_use_id AS earlier_tool_use_id,
        bit_count(xor(later.input_similarity, earlier.input_similarity)) AS bits_apart
    FROM tool_uses AS later
    JOIN attempts ON later.session_id = attempts.session_id AND later.attempt_id = attempts.attempt_id
    JOIN tool_uses AS earlier
        ON earlier.session_id = attempts.session_id AND earlier.attempt_id = attempts.continues_attempt_id
        AND earlier.name = later.name
    -- The maximum distance is 64 bits, and unrelated inputs differ in about 32 bits. In the logs of real sessions,
    -- different inputs always differed in at least 7 bits.
    WHERE bit_count(xor(later.input_similarity, earlier.input_similarity)) <= 6
)
SELECT
    third.session_id,
    third.lane,
    third.turn,
    third.requested_ns AS at_ns,
    third.name AS about,
    3::DOUBLE AS value,
    3::DOUBLE AS threshold,
    CASE
        WHEN third.bits_apart + second.bits_apart = 0 THEN 'the same arguments each time'
        ELSE format('argument hashes differ in {} and {} of 64 bits', second.bits_apart, third.bits_apart)
    END AS detail,
    third.tool_use_id AS evidence_id
FROM likely AS third
JOIN likely AS second
    ON second.session_id = third.session_id AND second.attempt_id = third.earlier_attempt_id
    AND second.tool_use_id = third.earlier_tool_use_id
QUALIFY row_number() OVER (
    PARTITION BY third.session_id, third.attempt_id, third.tool_use_id ORDER BY third.bits_apart + second.bits_apart
) = 1;
COMMENT ON VIEW repeated_calls IS 'The same tool was called with similar arguments in three turns in a row; one row for each third call.';
COMMENT ON COLUMN repeated_calls.session_id IS 'The ID of the session.';
COMMENT ON COLUMN repeated_calls.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN repeated_calls.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN repeated_calls.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN repeated_calls.about IS 'The name of the tool.';
COMMENT ON COLUMN repeated_calls.value IS 'The number of turns in a row. [turns]';
COMMENT ON COLUMN repeated_calls.threshold IS 'The minimum value for this finding. [turns]';
COMMENT ON COLUMN repeated_calls.detail IS 'How similar the arguments were.';
COMMENT ON COLUMN repeated_calls.evidence_id IS 'The ID of the third call.';

CREATE OR REPLACE VIEW rising_costs AS
WITH spent AS (
    SELECT
        session_id,
        attempt_id,
        CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END AS cost_usd,
        sum(
            input_tokens::HUGEINT + cache_read_tokens::HUGEINT + cache_write_5m_tokens::HUGEINT
            + cache_write_1h_tokens::HUGEINT
        ) AS prompt_tokens,
        sum(cache_read_tokens) AS cache_read_tokens,
        {
            'uncached input': sum(input_usd),
            'cache reads': sum(cache_read_usd),
            'cache writes': sum(cache_write_5m_usd + cache_write_1h_usd),
            'output': sum(output_usd)
        } AS parts
    FROM costs
    GROUP BY session_id, attempt_id
), ordered AS (
    -- A prompt that is shorter than the previous one was compacted or edited, and a turn that read less from the cache
    -- than the previous one missed it. What is then written to the cache again is not part of a rise.
    SELECT
        turns.*,
        spent.cost_usd,
        spent.parts,
        coalesce(
            cost_usd > lag(cost_usd) OVER each_lane
            AND prompt_tokens >= lag(prompt_tokens) OVER each_lane
            AND cache_read_tokens >= lag(cache_read_tokens) OVER each_lane,
            false
        ) AS rose,
        lag(cost_usd) OVER each_lane AS before_usd,
        lag(parts) OVER each_lane AS before_parts
    FROM attempts AS turns
    JOIN spent ON turns.session_id = spent.session_id AND turns.attempt_id = spent.attempt_id
    WHERE makes_turns AND outcome = 'ok' AND query_source IN ('main', 'sub_agent')
    WINDOW each_lane AS (PARTITION BY turns.session_id, turns.lane ORDER BY turns.started_ns, turns.attempt_id)
), numbered AS (
    SELECT
        *,
        count(*) FILTER (WHERE NOT rose) OVER (
            PARTITION BY session_id, lane ORDER BY started_ns, attempt_id
        ) AS rise
    FROM ordered
), rises AS (
    SELECT
        session_id,
        lane,
        max(turn) AS turn,
        max(started_ns) AS at_ns,
        count(*) AS turns,
        arg_min(before_usd, started_ns) AS first_usd,
        arg_max(cost_usd, started_ns) AS last_usd,
        arg_min(before_parts, started_ns) AS first_parts,
        {
            'uncached input': avg(parts['uncached input']),
            'cache reads': avg(parts['cache reads']),
            'cache writes': avg(parts['cache writes']),
            'output': avg(parts['output'])
        } AS usual_parts,
        arg_max(attempt_id, started_ns) AS evidence_id
    FROM numbered
    WHERE rose
    GROUP BY session_id, lane, rise
), compared AS (
    -- The average of the rise, so that one turn with a long response does not decide.
    SELECT
        *,
        [
            {'increase': usual_parts['uncached input'] - first_parts['uncached input'], 'part': 'uncached input'},
            {'increase': usual_parts['cache reads'] - first_parts['cache reads'], 'part': 'cache reads'},
            {'increase': usual_parts['cache writes'] - first_parts['cache writes'], 'part': 'cache writes'},
            {'increase': usual_parts['output'] - first_parts['output'], 'part': 'output'}
        ] AS increases
    FROM rises
    WHERE turns >= 5
)
SELECT
    session_id,
    lane,
    turn,
    at_ns,
    list_max(increases)['part'] AS about,
    turns::DOUBLE AS value,
    5::DOUBLE AS threshold,
    format('from ${:.4f} to ${:.4f} a turn, {:,} times in a row', first_usd::DOUBLE, last_usd::DOUBLE, turns) AS detail,
    evidence_id
FROM compared;
COMMENT ON VIEW rising_costs IS 'Each of five turns in a row cost more than the previous turn; one row for each such rise. A rise ends before a turn whose prompt is shorter than the previous one, because the conversation was compacted or edited, and before a turn that read less from the cache than the previous one, because that is a cache miss.';
COMMENT ON COLUMN rising_costs.session_id IS 'The ID of the session.';
COMMENT ON COLUMN rising_costs.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN rising_costs.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN rising_costs.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN rising_costs.about IS 'The part of the cost that increased most: `uncached input`, `cache reads`, `cache writes` or `output`.';
COMMENT ON COLUMN rising_costs.value IS 'How many times in a row a turn cost more than the previous turn. [turns]';
COMMENT ON COLUMN rising_costs.threshold IS 'The minimum value for this finding. [turns]';
COMMENT ON COLUMN rising_costs.detail IS 'The cost of the turn before the rise and of the last turn of the rise, and the number of turns.';
COMMENT ON COLUMN rising_costs.evidence_id IS 'The ID of the attempt of the last turn.';

CREATE OR REPLACE VIEW full_contexts AS
WITH prompts AS (
    SELECT
        session_id,
        attempt_id,
        arg_max(canonical_model, iteration) AS model,
        arg_max(input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens, iteration)::DOUBLE AS tokens
    FROM costs
    GROUP BY session_id, attempt_id
), recorded_windows AS (
    -- The agentobs loop records the window size that it uses, which may come from the provider.
    SELECT session_id, lane, at_ns, numbers['window'] AS window_tokens
    FROM events
    WHERE kind = 'context' AND numbers['window'] IS NOT NULL
), requests AS (
    SELECT
        attempts.session_id, attempts.lane, attempts.turn, attempts.started_ns, attempts.attempt_id, prompts.model,
        prompts.tokens,
        coalesce(
            recorded_windows.window_tokens,
            model_windows.window_tokens,
            -- A prompt that exceeds the standard window was sent with the beta header for the large window.
            CASE WHEN prompts.model IN ('claude-sonnet-4', 'claude-sonnet-4-5') AND max(prompts.tokens) OVER (
                PARTITION BY attempts.session_id, attempts.lane
            ) > 200000 THEN 1000000 END,
            200000
        )::DOUBLE AS window_tokens
    FROM attempts
    JOIN prompts ON attempts.session_id = prompts.session_id AND attempts.attempt_id = prompts.attempt_id
    -- Use the last window size recorded before the request, because the model may change during the session.
    ASOF LEFT JOIN recorded_windows
        ON attempts.session_id = recorded_windows.session_id AND attempts.lane = recorded_windows.lane
        AND attempts.started_ns >= recorded_windows.at_ns
    LEFT JOIN model_windows ON prompts.model = model_windows.model
    WHERE query_source IN ('main', 'sub_agent')
)
SELECT
    session_id,
    lane,
    arg_max(turn, tokens / window_tokens) AS turn,
    arg_max(started_ns, tokens / window_tokens) AS at_ns,
    arg_max(model, tokens / window_tokens) AS about,
    max(tokens / window_tokens) AS value,
    0.8::DOUBLE AS threshold,
    format(
        '{:,} of {:,} tokens', try_cast(arg_max(tokens, tokens / window_tokens) AS HUGEINT),
        try_cast(arg_max(window_tokens, tokens / window_tokens) AS HUGEINT)
    ) AS detail,
    arg_max(attempt_id, tokens / window_tokens) AS evidence_id
FROM requests
GROUP BY session_id, lane
HAVING max(tokens / window_tokens) > 0.8;
COMMENT ON VIEW full_contexts IS 'One row for each lane with a prompt longer than 80% of the model''s context window, with the longest prompt of the lane.';
COMMENT ON COLUMN full_contexts.session_id IS 'The ID of the session.';
COMMENT ON COLUMN full_contexts.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN full_contexts.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN full_contexts.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN full_contexts.about IS 'The name of the model.';
COMMENT ON COLUMN full_contexts.value IS 'The share of the context window that the prompt filled.';
COMMENT ON COLUMN full_contexts.threshold IS 'The share above which a context counts as too full.';
COMMENT ON COLUMN full_contexts.detail IS 'The tokens of the prompt and of the context window.';
COMMENT ON COLUMN full_contexts.evidence_id IS 'The ID of the attempt.';

CREATE OR REPLACE VIEW large_results AS
SELECT
    calls.session_id,
    calls.lane,
    calls.turn,
    results.result_ns AS at_ns,
    calls.name AS about,
    coalesce(results.text_characters, results.result_bytes)::DOUBLE AS value,
    10000::DOUBLE AS threshold,
    format('in a conversation of {} messages', requests.message_count + 2) AS detail,
    calls.tool_use_id AS evidence_id
FROM tool_results AS results
JOIN answered_calls AS answered ON results.segment_id = answered.segment_id AND results.sequence = answered.sequence
JOIN tool_uses AS calls
    ON answered.session_id = calls.session_id AND answered.attempt_id = calls.attempt_id
    AND answered.ordinal = calls.ordinal
JOIN attempts AS requests ON calls.session_id = requests.session_id AND calls.attempt_id = requests.attempt_id
WHERE
    coalesce(results.text_characters, results.result_bytes) > 10000
    -- Add two messages: the response that contains the call, and the message that contains the result.
    AND requests.message_count + 2 >= 30;
COMMENT ON VIEW large_results IS 'A tool returned more than 10,000 characters to a conversation of 30 messages or more; one row for each result.';
COMMENT ON COLUMN large_results.session_id IS 'The ID of the session.';
COMMENT ON COLUMN large_results.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN large_results.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN large_results.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN large_results.about IS 'The name of the tool.';
COMMENT ON COLUMN large_results.value IS 'Length of the text of the result; its size in bytes if the length was not recorded. [characters]';
COMMENT ON COLUMN large_results.threshold IS 'The size above which a result counts as too long. [characters]';
COMMENT ON COLUMN large_results.detail IS 'The number of messages of the conversation, including the result.';
COMMENT ON COLUMN large_results.evidence_id IS 'The ID of the tool call.';

CREATE OR REPLACE VIEW long_waits AS
WITH waits AS (
    SELECT * FROM permissions WHERE approval_requested AND resolver <> 'classifier'
), met AS (
    -- Concurrent waits count once.
    SELECT
        *,
        max(at_ns) OVER (
            PARTITION BY session_id, interaction_id ORDER BY at_ns - approval_wait_ns, at_ns, sequence
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS until_ns
    FROM waits
), shares AS (
    SELECT
        waits.session_id,
        waits.interaction_id,
        any_value(waits.lane) AS lane,
        max(waits.at_ns) AS at_ns,
        arg_max(waits.tool, waits.approval_wait_ns) AS about,
        count(*) AS times,
        sum(greatest(0, waits.at_ns - greatest(waits.at_ns - waits.approval_wait_ns, coalesce(waits.until_ns, 0)))) AS waited_ns,
        max(interactions.duration_ns) AS wall_ns
    FROM met AS waits
    JOIN interactions
        ON waits.session_id = interactions.session_id AND waits.interaction_id = interactions.interaction_id
    GROUP BY waits.session_id, waits.interaction_id
)
SELECT
    session_id,
    lane,
    turn,
    at_ns,
    tool AS about,
    approval_wait_ns / 1e9 AS value,
    10::DOUBLE AS threshold,
    format('{} answered after {:.1f} s: {}', resolver, approval_wait_ns / 1e9, behavior) AS detail,
    tool_use_id AS evidence_id
FROM waits
WHERE approval_wait_ns > 10000000000
UNION ALL
SELECT
    session_id,
    lane,
    NULL AS turn,
    at_ns,
    about,
    waited_ns / wall_ns AS value,
    0.2::DOUBLE AS threshold,
    format('{} waits took {:.1f} s of {:.1f} s', times, waited_ns / 1e9, wall_ns / 1e9) AS detail,
    interaction_id AS evidence_id
FROM shares
WHERE waited_ns >= 1000000000 AND waited_ns > 0.2 * wall_ns;
COMMENT ON VIEW long_waits IS 'Long approval waits: one row for each decision that took over 10 s, and one for each interaction whose approval waits took more than a fifth of its wall time and at least one second in total.';
COMMENT ON COLUMN long_waits.session_id IS 'The ID of the session.';
COMMENT ON COLUMN long_waits.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN long_waits.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN long_waits.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN long_waits.about IS 'The tool; for an interaction, the tool with the longest wait.';
COMMENT ON COLUMN long_waits.value IS 'The duration of the wait in seconds; for an interaction, the share of its wall time.';
COMMENT ON COLUMN long_waits.threshold IS '10 seconds; for an interaction, a fifth of its duration.';
COMMENT ON COLUMN long_waits.detail IS 'Who answered, and how; for an interaction, the number of waits.';
COMMENT ON COLUMN long_waits.evidence_id IS 'The ID of the call, or of the interaction.';

CREATE OR REPLACE VIEW repeated_denials AS
WITH denied AS (
    SELECT calls.session_id, calls.lane, calls.turn, calls.name, calls.tool_use_id, results.result_ns, results.outcome
    FROM tool_results AS results
    JOIN answered_calls AS answered ON results.segment_id = answered.segment_id AND results.sequence = answered.sequence
    JOIN tool_uses AS calls
        ON answered.session_id = calls.session_id AND answered.attempt_id = calls.attempt_id
        AND answered.ordinal = calls.ordinal
    WHERE results.outcome IN ('denied', 'blocked') OR results.error_kind = 'denied'
)
SELECT
    session_id,
    lane,
    max(turn) AS turn,
    max(result_ns) AS at_ns,
    name AS about,
    count(*)::DOUBLE AS value,
    3::DOUBLE AS threshold,
    format('{} calls were denied, {} of them by hooks', count(*), count(*) FILTER (WHERE outcome = 'blocked')) AS detail,
    arg_max(tool_use_id, result_ns) AS evidence_id
FROM denied
GROUP BY session_id, lane, name
HAVING count(*) >= 3;
COMMENT ON VIEW repeated_denials IS 'At least three calls of a tool were denied; one row for each lane and tool.';
COMMENT ON COLUMN repeated_denials.session_id IS 'The ID of the session.';
COMMENT ON COLUMN repeated_denials.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN repeated_denials.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN repeated_denials.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN repeated_denials.about IS 'The name of the tool.';
COMMENT ON COLUMN repeated_denials.value IS 'The number of calls of the tool that were denied. [calls]';
COMMENT ON COLUMN repeated_denials.threshold IS 'The minimum value for this finding. [calls]';
COMMENT ON COLUMN repeated_denials.detail IS 'How many of these calls were denied by hooks.';
COMMENT ON COLUMN repeated_denials.evidence_id IS 'The ID of the last of these calls.';

CREATE OR REPLACE VIEW silent_hook_cancels AS
SELECT
    events.session_id,
    events.lane,
    events.turn,
    events.at_ns,
    coalesce(events.labels['hook'], 'hook') AS about,
    1::DOUBLE AS value,
    1::DOUBLE AS threshold,
    format('cancelled after {:.1f} s', coalesce(events.numbers['duration_ns'], 0) / 1e9) AS detail,
    events.interaction_id AS evidence_id
FROM events
LEFT JOIN interactions
    ON events.session_id = interactions.session_id AND events.interaction_id = interactions.interaction_id
-- If the complete interaction was cancelled, its hooks were cancelled with it.
WHERE events.kind = 'hook' AND events.label = 'cancelled' AND coalesce(interactions.result, '') <> 'cancelled';
COMMENT ON VIEW silent_hook_cancels IS 'One row for each hook that was cancelled although the action that it should have checked continued.';
COMMENT ON COLUMN silent_hook_cancels.session_id IS 'The ID of the session.';
COMMENT ON COLUMN silent_hook_cancels.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN silent_hook_cancels.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN silent_hook_cancels.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN silent_hook_cancels.about IS 'The name of the hook, if known.';
COMMENT ON COLUMN silent_hook_cancels.value IS 'Always 1.';
COMMENT ON COLUMN silent_hook_cancels.threshold IS 'Always 1.';
COMMENT ON COLUMN silent_hook_cancels.detail IS 'The time after which the hook was cancelled.';
COMMENT ON COLUMN silent_hook_cancels.evidence_id IS 'The ID of the interaction.';

CREATE OR REPLACE VIEW broken_caches AS
SELECT
    missed.session_id,
    missed.lane,
    missed.turn,
    missed.at_ns,
    missed.reason AS about,
    missed.missed_tokens::DOUBLE AS value,
    1024::DOUBLE AS threshold,
    concat_ws(
        ', ',
        coalesce('changed: ' || missed.zones_changed, 'changed: ' || replace(missed.reason, '_changed', '')),
        'message ' || missed.changed_message,
        'wasted $' || round(missed.wasted_usd, 4),
        CASE missed.reason_source
            WHEN 'provider' THEN 'reported by the provider'
            WHEN 'request' THEN 'derived from the requests'
        END
    ) AS detail,
    missed.attempt_id AS evidence_id
FROM cache_misses AS missed
LEFT JOIN attempts AS compared
    ON missed.session_id = compared.session_id AND missed.compared_attempt_id = compared.attempt_id
-- A miss after a compaction is expected, because the conversation starts again.
ANTI JOIN (
    SELECT session_id, lane, at_ns FROM events WHERE kind = 'compaction'
) AS compacted
    ON missed.session_id = compacted.session_id AND missed.lane = compacted.lane
    AND compacted.at_ns > compared.started_ns AND compacted.at_ns <= missed.at_ns
-- No prompt below 1,024 tokens is cached.
WHERE suffix(missed.reason, '_changed') AND missed.missed_tokens >= 1024;
COMMENT ON VIEW broken_caches IS 'A request changed the cached prefix, so that tokens were paid for again; one row for each such request, with the cause.';
COMMENT ON COLUMN broken_caches.session_id IS 'The ID of the session.';
COMMENT ON COLUMN broken_caches.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN broken_caches.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN broken_caches.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN broken_caches.about IS 'The cause, as in cache_misses: `tools_changed`, `system_changed` and others.';
COMMENT ON COLUMN broken_caches.value IS 'Tokens that were paid for again. [tokens]';
COMMENT ON COLUMN broken_caches.threshold IS 'The length of the shortest prompt that is cached. [tokens]';
COMMENT ON COLUMN broken_caches.detail IS 'All zones that changed, the first message that changed, the cost of the miss, and how the reason was determined.';
COMMENT ON COLUMN broken_caches.evidence_id IS 'The ID of the attempt.';

CREATE OR REPLACE VIEW cache_rewrites AS
WITH lost AS (
    SELECT * FROM cache_losses WHERE wasted_usd > 0
), missed AS (
    -- A loss after a compaction is expected, because the conversation starts again.
    SELECT * FROM lost WHERE reason <> 'compaction'
), expected AS (
    SELECT session_id, sum(wasted_usd) AS wasted_usd FROM lost WHERE reason = 'compaction' GROUP BY session_id
), rewritten AS (
    SELECT
        session_id,
        count(*) AS calls,
        sum(wasted_usd) AS wasted_usd,
        sum(missed_tokens) AS missed_tokens,
        arg_max(missed, wasted_usd) AS worst
    FROM missed
    GROUP BY session_id
), by_reason AS (
    SELECT session_id, reason, count(*) AS calls, sum(wasted_usd) AS wasted_usd FROM missed GROUP BY session_id, reason
), reasons AS (
    SELECT
        session_id,
        count(*) AS reasons,
        string_agg(
            printf('%s $%.4f in %d', reason, wasted_usd::DOUBLE, calls), ', ' ORDER BY wasted_usd DESC, reason
        ) AS each
    FROM by_reason
    GROUP BY session_id
), spent AS (
    SELECT
        session_id,
        sum(cost_usd) AS cost_usd,
        summed_status(cost_usd, cost_status) = 'lower_bound' AS is_low,
        -- A lower bound is rounded down.
        printf('$%.4f', CASE WHEN is_low THEN floor(sum(cost_usd) * 10000) / 10000 ELSE sum(cost_usd) END::DOUBLE) AS amount
    FROM costs
    SEMI JOIN rewritten USING (session_id)
    GROUP BY session_id
)
SELECT
    rewritten.session_id,
    rewritten.worst.lane AS lane,
    rewritten.worst.turn AS turn,
    rewritten.worst.at_ns AS at_ns,
    rewritten.worst.reason AS about,
    (rewritten.wasted_usd / spent.cost_usd)::DOUBLE AS value,
    0.1::DOUBLE AS threshold,
    concat(
        printf('about $%.4f of ', rewritten.wasted_usd::DOUBLE), CASE WHEN spent.is_low THEN 'at least ' END, spent.amount,
        ' in ', rewritten.calls,
        CASE rewritten.calls WHEN 1 THEN ' request' ELSE ' requests' END,
        CASE WHEN reasons.reasons > 1 THEN concat(' (', reasons.each, ')') END,
        CASE WHEN rewritten.calls > 1 THEN printf(', at most $%.4f in one', rewritten.worst.wasted_usd::DOUBLE) END,
        CASE WHEN expected.wasted_usd > 0 THEN printf(', without $%.4f after compactions', expected.wasted_usd::DOUBLE) END
    ) AS detail,
    rewritten.worst.attempt_id AS evidence_id
FROM rewritten
JOIN reasons ON rewritten.session_id = reasons.session_id
JOIN spent ON rewritten.session_id = spent.session_id
LEFT JOIN expected ON rewritten.session_id = expected.session_id
-- No prompt below 1,024 tokens is cached.
WHERE rewritten.missed_tokens >= 1024 AND rewritten.wasted_usd >= 0.1 * spent.cost_usd;
COMMENT ON VIEW cache_rewrites IS 'At least a tenth of the cost of a session was paid again for tokens that had been in the cache, for any reason except a compaction; one row for each such session.';
COMMENT ON COLUMN cache_rewrites.session_id IS 'The ID of the session.';
COMMENT ON COLUMN cache_rewrites.lane IS 'The lane of the most expensive miss: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN cache_rewrites.turn IS 'The turn of the most expensive miss within the lane, from 1, or NULL.';
COMMENT ON COLUMN cache_rewrites.at_ns IS 'When the request with the most expensive miss was sent. [ns since 1970 UTC]';
COMMENT ON COLUMN cache_rewrites.about IS 'The reason for the most expensive miss, as in cache_misses: `expired`, `tools_changed` and others.';
COMMENT ON COLUMN cache_rewrites.value IS 'The extra cost of the misses as a share of the cost of the session.';
COMMENT ON COLUMN cache_rewrites.threshold IS 'Always 0.1.';
COMMENT ON COLUMN cache_rewrites.detail IS 'The extra cost of all misses, the cost of the session, the number of requests, the extra cost by reason if there are several, and the extra cost of the most expensive request.';
COMMENT ON COLUMN cache_rewrites.evidence_id IS 'The ID of the attempt with the most expensive miss.';

CREATE OR REPLACE VIEW repeated_tool_errors AS
WITH answered AS (
    SELECT
        calls.session_id,
        calls.lane,
        calls.turn,
        calls.name,
        calls.tool_use_id,
        results.result_ns,
        CASE
            WHEN results.outcome IN ('invalid', 'unknown', 'duplicate', 'deduplicated') THEN 'schema'
            WHEN results.outcome IN ('denied', 'blocked') THEN 'denied'
            WHEN results.outcome = 'timeout' THEN 'timeout'
            WHEN results.is_error AND results.outcome IN ('failed', 'executed', 'substituted')
                AND coalesce(results.error_kind, 'semantic') = 'semantic'
                -- Names such as TimeoutError, ReadTimeout, QueryTimedOut and DeadlineExceeded.
                AND regexp_matches(results.error_class, 'timed?_?out|deadlineexceeded', 'i') THEN 'timeout'
            WHEN results.error_kind IS NOT NULL AND results.is_error THEN results.error_kind
            -- Neither the words of the error nor its class are known.
            WHEN results.outcome = 'failed' THEN if(results.error_class IS NULL, 'unknown', 'semantic')
            WHEN results.outcome IN ('executed', 'substituted') AND results.is_error THEN 'semantic'
        END AS kind
    FROM tool_results AS results
    JOIN answered_calls AS answered ON results.segment_id = answered.segment_id AND results.sequence = answered.sequence
    JOIN tool_uses AS calls
        ON answered.session_id = calls.session_id AND answered.attempt_id = calls.attempt_id
        AND answered.ordinal = calls.ordinal
), counted AS (
    SELECT *, count(*) OVER (PARTITION BY session_id, lane, name) AS calls
    FROM answered
)
SELECT
    session_id,
    lane,
    max(turn) AS turn,
    max(result_ns) AS at_ns,
    name AS about,
    count(*)::DOUBLE AS value,
    3::DOUBLE AS threshold,
    if(kind = 'unknown', '', kind || ': ') || format('{} of {} calls', count(*), any_value(calls)) AS detail,
    arg_max(tool_use_id, result_ns) AS evidence_id
FROM counted
WHERE kind IS NOT NULL
GROUP BY session_id, lane, name, kind
HAVING count(*) >= 3 AND count(*) * 5 >= any_value(calls);
COMMENT ON VIEW repeated_tool_errors IS 'One row for each lane, tool and kind of error, if at least three calls and at least a fifth of the tool''s calls failed in this way.';
COMMENT ON COLUMN repeated_tool_errors.session_id IS 'The ID of the session.';
COMMENT ON COLUMN repeated_tool_errors.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN repeated_tool_errors.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN repeated_tool_errors.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN repeated_tool_errors.about IS 'The name of the tool.';
COMMENT ON COLUMN repeated_tool_errors.value IS 'The number of failed calls. [calls]';
COMMENT ON COLUMN repeated_tool_errors.threshold IS 'The minimum value for this finding. [calls]';
COMMENT ON COLUMN repeated_tool_errors.detail IS 'The kind of error and the number of all calls of the tool. `schema`: the input was invalid; `denied`: the call was not permitted; `timeout`: the tool, or an operation in it, took too long; `semantic`: any other error. Only the numbers if the kind is not known.';
COMMENT ON COLUMN tool_results.error_kind IS 'The kind of error, derived from the error text: `schema`: the input was invalid; `denied`: the call was not permitted; `timeout`: the tool, or an operation in it, took too long; `semantic`: any other error. NULL otherwise; for calls of the agentobs loop, only `timeout`, see the outcome.';
COMMENT ON COLUMN repeated_tool_errors.evidence_id IS 'The ID of the last of these calls.';

CREATE OR REPLACE VIEW contradictions AS
SELECT
    answers.session_id,
    answers.lane,
    max(answers.turn) AS turn,
    max(answers.started_ns) AS at_ns,
    string_agg(DISTINCT calls.name, ' ') AS about,
    count(*)::DOUBLE AS value,
    1::DOUBLE AS threshold,
    CASE count(*)
        WHEN 1 THEN 'claims success, but the only result before it is an error'
        ELSE format('claims success, but all {} results before it are errors', count(*))
    END AS detail,
    answers.attempt_id AS evidence_id
FROM attempts AS answers
JOIN tool_uses AS calls
    ON answers.session_id = calls.session_id AND answers.continues_attempt_id = calls.attempt_id
JOIN answered_calls AS answered
    ON calls.session_id = answered.session_id AND calls.attempt_id = answered.attempt_id
    AND calls.ordinal = answered.ordinal
JOIN tool_results AS results ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
WHERE answers.claims_success
GROUP BY answers.session_id, answers.lane, answers.attempt_id
HAVING bool_and(results.is_error);
COMMENT ON VIEW contradictions IS 'One row for each response that claims success although every tool result before it is an error.';
COMMENT ON COLUMN contradictions.session_id IS 'The ID of the session.';
COMMENT ON COLUMN contradictions.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN contradictions.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN contradictions.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN contradictions.about IS 'The names of the tools.';
COMMENT ON COLUMN contradictions.value IS 'The number of tool results to which the response replies. [results]';
COMMENT ON COLUMN contradictions.threshold IS 'The minimum value for this finding. [results]';
COMMENT ON COLUMN contradictions.detail IS 'The number of failed results to which the response replies.';
COMMENT ON COLUMN contradictions.evidence_id IS 'The ID of the attempt with this response.';

CREATE OR REPLACE VIEW failed_summaries AS
WITH spent AS (
    SELECT session_id, sum(cost_usd) AS cost_usd FROM costs GROUP BY session_id
)
SELECT
    unused.session_id,
    unused.lane,
    max(unused.turn) AS turn,
    max(unused.at_ns) AS at_ns,
    coalesce(mode(unused.reason), 'unknown') AS about,
    count(*)::DOUBLE AS value,
    2::DOUBLE AS threshold,
    concat_ws(
        ' ',
        format('{} requests', sum(unused.requests)),
        format('cost ${:.4f} of ${:.4f}', sum(unused.cost_usd)::DOUBLE, any_value(spent.cost_usd)::DOUBLE)
    ) AS detail,
    arg_max(unused.summary_lane, unused.at_ns) AS evidence_id
FROM unused_summaries AS unused
LEFT JOIN spent ON unused.session_id = spent.session_id
GROUP BY unused.session_id, unused.lane
HAVING count(*) >= 2;
COMMENT ON VIEW failed_summaries IS 'At least two summaries of a conversation were requested and not used, although the model responded; one row for each lane.';
COMMENT ON COLUMN failed_summaries.session_id IS 'The ID of the session.';
COMMENT ON COLUMN failed_summaries.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN failed_summaries.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN failed_summaries.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN failed_summaries.about IS 'The most frequent reason, as in unused_summaries.';
COMMENT ON COLUMN failed_summaries.value IS 'The number of summaries that were not used. [summaries]';
COMMENT ON COLUMN failed_summaries.threshold IS 'The minimum value for this finding. [summaries]';
COMMENT ON COLUMN failed_summaries.detail IS 'The number of LLM requests for these summaries, and their share of the cost of the session if their prices are known.';
COMMENT ON COLUMN failed_summaries.evidence_id IS 'The lane of the requests for the last of these summaries.';

CREATE OR REPLACE VIEW diagnoses AS
SELECT 'repeated_calls' AS signature, * FROM repeated_calls
UNION ALL
SELECT 'rising_costs' AS signature, * FROM rising_costs
UNION ALL
SELECT 'full_contexts' AS signature, * FROM full_contexts
UNION ALL
SELECT 'large_results' AS signature, * FROM large_results
UNION ALL
SELECT 'long_waits' AS signature, * FROM long_waits
UNION ALL
SELECT 'repeated_denials' AS signature, * FROM repeated_denials
UNION ALL
SELECT 'silent_hook_cancels' AS signature, * FROM silent_hook_cancels
UNION ALL
SELECT 'broken_caches' AS signature, * FROM broken_caches
UNION ALL
SELECT 'cache_rewrites' AS signature, * FROM cache_rewrites
UNION ALL
SELECT 'repeated_tool_errors' AS signature, * FROM repeated_tool_errors
UNION ALL
SELECT 'contradictions' AS signature, * FROM contradictions
UNION ALL
SELECT 'failed_summaries' AS signature, * FROM failed_summaries;
COMMENT ON VIEW diagnoses IS 'All findings of all failure signatures.';
COMMENT ON COLUMN diagnoses.signature IS 'The failure signature: the name of the view that describes the other columns.';
COMMENT ON COLUMN diagnoses.session_id IS 'The ID of the session.';
COMMENT ON COLUMN diagnoses.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN diagnoses.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN diagnoses.at_ns IS 'When the finding occurred. [ns since 1970 UTC]';
COMMENT ON COLUMN diagnoses.about IS 'The subject of the finding: a tool, a model, a hook, the part of the cost that rose most, or the cause of a cache rewrite.';
COMMENT ON COLUMN diagnoses.value IS 'The measured value.';
COMMENT ON COLUMN diagnoses.threshold IS 'The threshold for the value.';
COMMENT ON COLUMN diagnoses.detail IS 'A readable detail.';
COMMENT ON COLUMN diagnoses.evidence_id IS 'The ID of the call, the attempt or the interaction that shows the finding.';
