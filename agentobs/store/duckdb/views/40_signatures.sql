-- Failure signatures: each view holds the places where one of them fires, with what it measured there. A session
-- that has no row in a view does not show that signature. What each means and what to do about it: docs/diagnose.md.

CREATE OR REPLACE VIEW model_windows AS
SELECT unnest([
    'claude-fable-5', 'claude-fable-5-1', 'claude-fable-5-2', 'claude-haiku-5-5', 'claude-mythos-5-2', 'claude-opus-4-6',
    'claude-opus-4-7', 'claude-opus-4-8', 'claude-opus-5', 'claude-opus-5-5', 'claude-sonnet-4-6', 'claude-sonnet-5',
    'claude-sonnet-5-5'
]) AS model, 1000000::BIGINT AS window_tokens;
COMMENT ON VIEW model_windows IS 'Models that take more than 200,000 tokens at once: the table by which the loop compacts, as of November 2026.';
COMMENT ON COLUMN model_windows.model IS 'The one name of the model.';
COMMENT ON COLUMN model_windows.window_tokens IS 'How many tokens it takes at once. [tokens]';

CREATE OR REPLACE VIEW repeated_calls AS
WITH likely AS (
    -- Turns are consecutive if the request of the later one continues the answer of the earlier one.
    SELECT
        later.session_id, later.lane, later.turn, later.attempt_id, later.tool_use_id, later.name, later.requested_ns,
        later.ordinal, earlier.attempt_id AS earlier_attempt_id, earlier.tool_use_id AS earlier_tool_use_id,
        bit_count(xor(later.input_similarity, earlier.input_similarity)) AS bits_apart
    FROM tool_uses AS later
    JOIN attempts ON later.session_id = attempts.session_id AND later.attempt_id = attempts.attempt_id
    JOIN tool_uses AS earlier
        ON earlier.session_id = attempts.session_id AND earlier.attempt_id = attempts.continues_attempt_id
        AND earlier.name = later.name
    -- Of 64. Unrelated inputs are about 32 apart, and none of people at work were nearer than 7.
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
        ELSE format('arguments {} and {} bits of 64 apart', second.bits_apart, third.bits_apart)
    END AS detail,
    third.tool_use_id AS evidence_id
FROM likely AS third
JOIN likely AS second
    ON second.session_id = third.session_id AND second.attempt_id = third.earlier_attempt_id
    AND second.tool_use_id = third.earlier_tool_use_id
QUALIFY row_number() OVER (
    PARTITION BY third.session_id, third.attempt_id, third.tool_use_id ORDER BY third.bits_apart + second.bits_apart
) = 1;
COMMENT ON VIEW repeated_calls IS 'The same tool was called with like arguments in three turns in a row: one row for each third call.';
COMMENT ON COLUMN repeated_calls.session_id IS 'The session.';
COMMENT ON COLUMN repeated_calls.lane IS 'The lane.';
COMMENT ON COLUMN repeated_calls.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN repeated_calls.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN repeated_calls.about IS 'The tool.';
COMMENT ON COLUMN repeated_calls.value IS 'Turns in a row. [turns]';
COMMENT ON COLUMN repeated_calls.threshold IS 'What it takes. [turns]';
COMMENT ON COLUMN repeated_calls.detail IS 'How alike the arguments were.';
COMMENT ON COLUMN repeated_calls.evidence_id IS 'The third call.';

CREATE OR REPLACE VIEW rising_costs AS
WITH spent AS (
    SELECT
        session_id,
        attempt_id,
        CASE WHEN count(cost_usd) = count(*) THEN sum(cost_usd) END AS cost_usd
    FROM costs
    GROUP BY session_id, attempt_id
), ordered AS (
    SELECT
        turns.*,
        spent.cost_usd,
        coalesce(cost_usd > lag(cost_usd) OVER each_lane, false) AS rose,
        lag(cost_usd) OVER each_lane AS before_usd
    FROM attempts AS turns
    JOIN spent ON turns.session_id = spent.session_id AND turns.attempt_id = spent.attempt_id
    WHERE endpoint = '/v1/messages' AND outcome = 'ok' AND query_source IN ('main', 'sub_agent')
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
        arg_max(attempt_id, started_ns) AS evidence_id
    FROM numbered
    WHERE rose
    GROUP BY session_id, lane, rise
)
SELECT
    session_id,
    lane,
    turn,
    at_ns,
    lane AS about,
    turns::DOUBLE AS value,
    5::DOUBLE AS threshold,
    format('from ${:.4f} to ${:.4f} a turn', first_usd::DOUBLE, last_usd::DOUBLE) AS detail,
    evidence_id
FROM rises
WHERE turns >= 5;
COMMENT ON VIEW rising_costs IS 'Each of five turns in a row cost more than the one before: one row for each such rise.';
COMMENT ON COLUMN rising_costs.session_id IS 'The session.';
COMMENT ON COLUMN rising_costs.lane IS 'The lane.';
COMMENT ON COLUMN rising_costs.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN rising_costs.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN rising_costs.about IS 'The lane.';
COMMENT ON COLUMN rising_costs.value IS 'How often in a row a turn cost more than the one before. [turns]';
COMMENT ON COLUMN rising_costs.threshold IS 'What it takes. [turns]';
COMMENT ON COLUMN rising_costs.detail IS 'What a turn cost before the rise and at its end.';
COMMENT ON COLUMN rising_costs.evidence_id IS 'The attempt of its last turn.';

CREATE OR REPLACE VIEW full_contexts AS
WITH prompts AS (
    SELECT
        session_id,
        attempt_id,
        arg_max(canonical_model, iteration) AS model,
        arg_max(input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens, iteration)::DOUBLE AS tokens
    FROM costs
    GROUP BY session_id, attempt_id
), told AS (
    -- Our own loop records the size of the window that it uses, which may come from the provider.
    SELECT session_id, lane, at_ns, numbers['window'] AS window_tokens
    FROM events
    WHERE kind = 'context' AND numbers['window'] IS NOT NULL
), asked AS (
    SELECT
        attempts.session_id, attempts.lane, attempts.turn, attempts.started_ns, attempts.attempt_id, prompts.model,
        prompts.tokens,
        coalesce(
            told.window_tokens,
            model_windows.window_tokens,
            -- A prompt that is longer than the small window was sent with the beta for the large one.
            CASE WHEN prompts.model IN ('claude-sonnet-4', 'claude-sonnet-4-5') AND max(prompts.tokens) OVER (
                PARTITION BY attempts.session_id, attempts.lane
            ) > 200000 THEN 1000000 END,
            200000
        )::DOUBLE AS window_tokens
    FROM attempts
    JOIN prompts ON attempts.session_id = prompts.session_id AND attempts.attempt_id = prompts.attempt_id
    -- Another model that is used later may have a smaller window: the last recorded one counts.
    ASOF LEFT JOIN told
        ON attempts.session_id = told.session_id AND attempts.lane = told.lane AND attempts.started_ns >= told.at_ns
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
FROM asked
GROUP BY session_id, lane
HAVING max(tokens / window_tokens) > 0.8;
COMMENT ON VIEW full_contexts IS 'A prompt was longer than 80 % of the window of its model: one row for each lane, of its fullest prompt.';
COMMENT ON COLUMN full_contexts.session_id IS 'The session.';
COMMENT ON COLUMN full_contexts.lane IS 'The lane.';
COMMENT ON COLUMN full_contexts.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN full_contexts.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN full_contexts.about IS 'The model.';
COMMENT ON COLUMN full_contexts.value IS 'The share of the window that the prompt filled.';
COMMENT ON COLUMN full_contexts.threshold IS 'The share above which a context counts as too full.';
COMMENT ON COLUMN full_contexts.detail IS 'Its tokens and those of the window.';
COMMENT ON COLUMN full_contexts.evidence_id IS 'The attempt.';

CREATE OR REPLACE VIEW large_results AS
SELECT
    calls.session_id,
    calls.lane,
    calls.turn,
    results.result_ns AS at_ns,
    calls.name AS about,
    coalesce(results.text_characters, results.result_bytes)::DOUBLE AS value,
    10000::DOUBLE AS threshold,
    format('in a conversation of {} messages', asked.message_count + 2) AS detail,
    calls.tool_use_id AS evidence_id
FROM tool_results AS results
JOIN answered_calls AS answered ON results.segment_id = answered.segment_id AND results.sequence = answered.sequence
JOIN tool_uses AS calls
    ON answered.session_id = calls.session_id AND answered.attempt_id = calls.attempt_id
    AND answered.ordinal = calls.ordinal
JOIN attempts AS asked ON calls.session_id = asked.session_id AND calls.attempt_id = asked.attempt_id
WHERE
    coalesce(results.text_characters, results.result_bytes) > 10000
    -- With the answer that contains the call and the message that contains the result.
    AND asked.message_count + 2 >= 30;
COMMENT ON VIEW large_results IS 'A tool returned more than 10,000 characters to a conversation of 30 messages or more: one row for each result.';
COMMENT ON COLUMN large_results.session_id IS 'The session.';
COMMENT ON COLUMN large_results.lane IS 'The lane.';
COMMENT ON COLUMN large_results.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN large_results.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN large_results.about IS 'The tool.';
COMMENT ON COLUMN large_results.value IS 'The text of the result; its bytes where that was not noted. [characters]';
COMMENT ON COLUMN large_results.threshold IS 'The size above which a result counts as too long. [characters]';
COMMENT ON COLUMN large_results.detail IS 'How many messages the conversation had with it.';
COMMENT ON COLUMN large_results.evidence_id IS 'The call.';

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
COMMENT ON VIEW long_waits IS 'Somebody was waited for: one row for each decision that took over 10 s, and for each interaction of whose wall time all together took over a fifth and at least a second.';
COMMENT ON COLUMN long_waits.session_id IS 'The session.';
COMMENT ON COLUMN long_waits.lane IS 'The lane.';
COMMENT ON COLUMN long_waits.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN long_waits.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN long_waits.about IS 'The tool; of an interaction the one that was waited for longest.';
COMMENT ON COLUMN long_waits.value IS 'How long in seconds; of an interaction the share of its wall time.';
COMMENT ON COLUMN long_waits.threshold IS '10 seconds; of an interaction a fifth.';
COMMENT ON COLUMN long_waits.detail IS 'Who answered, and how; of an interaction how many waits there were.';
COMMENT ON COLUMN long_waits.evidence_id IS 'The call, or the interaction.';

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
COMMENT ON VIEW repeated_denials IS 'Three calls of one tool or more were not permitted: one row for each lane and tool.';
COMMENT ON COLUMN repeated_denials.session_id IS 'The session.';
COMMENT ON COLUMN repeated_denials.lane IS 'The lane.';
COMMENT ON COLUMN repeated_denials.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN repeated_denials.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN repeated_denials.about IS 'The tool.';
COMMENT ON COLUMN repeated_denials.value IS 'Calls of it that were denied. [calls]';
COMMENT ON COLUMN repeated_denials.threshold IS 'What it takes. [calls]';
COMMENT ON COLUMN repeated_denials.detail IS 'How many of them hooks denied.';
COMMENT ON COLUMN repeated_denials.evidence_id IS 'The last of these calls.';

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
-- Where the whole run was stopped, its hooks were with it.
WHERE events.kind = 'hook' AND events.label = 'cancelled' AND coalesce(interactions.result, '') <> 'cancelled';
COMMENT ON VIEW silent_hook_cancels IS 'One row for each hook that was cancelled while the action that it should have checked continued.';
COMMENT ON COLUMN silent_hook_cancels.session_id IS 'The session.';
COMMENT ON COLUMN silent_hook_cancels.lane IS 'The lane.';
COMMENT ON COLUMN silent_hook_cancels.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN silent_hook_cancels.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN silent_hook_cancels.about IS 'The hook, where that is known.';
COMMENT ON COLUMN silent_hook_cancels.value IS '1.';
COMMENT ON COLUMN silent_hook_cancels.threshold IS '1.';
COMMENT ON COLUMN silent_hook_cancels.detail IS 'After how long.';
COMMENT ON COLUMN silent_hook_cancels.evidence_id IS 'The interaction.';

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
        'told by the ' || missed.reason_source
    ) AS detail,
    missed.attempt_id AS evidence_id
FROM cache_misses AS missed
LEFT JOIN attempts AS compared
    ON missed.session_id = compared.session_id AND missed.compared_attempt_id = compared.attempt_id
-- After a compaction a miss is intended: the conversation starts again.
ANTI JOIN (
    SELECT session_id, lane, at_ns FROM events WHERE kind = 'compaction'
) AS compacted
    ON missed.session_id = compacted.session_id AND missed.lane = compacted.lane
    AND compacted.at_ns BETWEEN compared.started_ns AND missed.at_ns
-- No prompt below 1,024 tokens is cached.
WHERE suffix(missed.reason, '_changed') AND missed.missed_tokens >= 1024;
COMMENT ON VIEW broken_caches IS 'A request changed what the cache held, so that it was paid again: one row for each, and what broke it.';
COMMENT ON COLUMN broken_caches.session_id IS 'The session.';
COMMENT ON COLUMN broken_caches.lane IS 'The lane.';
COMMENT ON COLUMN broken_caches.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN broken_caches.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN broken_caches.about IS 'What broke it, as in cache_misses: `tools_changed`, `system_changed` and others.';
COMMENT ON COLUMN broken_caches.value IS 'What was paid again. [tokens]';
COMMENT ON COLUMN broken_caches.threshold IS 'The shortest prompt that is cached. [tokens]';
COMMENT ON COLUMN broken_caches.detail IS 'All zones that changed, the first message that did, the cost of the miss, and the source of the reason.';
COMMENT ON COLUMN broken_caches.evidence_id IS 'The attempt.';

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
            WHEN results.outcome IN ('failed', 'timeout') THEN coalesce(results.error_kind, 'semantic')
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
    format('{}: {} of {} calls', kind, count(*), any_value(calls)) AS detail,
    arg_max(tool_use_id, result_ns) AS evidence_id
FROM counted
WHERE kind IS NOT NULL
GROUP BY session_id, lane, name, kind
HAVING count(*) >= 3 AND count(*) * 5 >= any_value(calls);
COMMENT ON VIEW repeated_tool_errors IS 'A tool failed three times or more in one way, and in a fifth of its calls or more: one row for each lane, tool and kind.';
COMMENT ON COLUMN repeated_tool_errors.session_id IS 'The session.';
COMMENT ON COLUMN repeated_tool_errors.lane IS 'The lane.';
COMMENT ON COLUMN repeated_tool_errors.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN repeated_tool_errors.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN repeated_tool_errors.about IS 'The tool.';
COMMENT ON COLUMN repeated_tool_errors.value IS 'How often. [calls]';
COMMENT ON COLUMN repeated_tool_errors.threshold IS 'What it takes. [calls]';
COMMENT ON COLUMN repeated_tool_errors.detail IS 'The kind of the errors: `schema`, `semantic` or `denied`; and how many calls there were.';
COMMENT ON COLUMN repeated_tool_errors.evidence_id IS 'The last of these calls.';

CREATE OR REPLACE VIEW contradictions AS
SELECT
    answers.session_id,
    answers.lane,
    max(answers.turn) AS turn,
    max(answers.started_ns) AS at_ns,
    string_agg(DISTINCT calls.name, ' ') AS about,
    count(*)::DOUBLE AS value,
    1::DOUBLE AS threshold,
    format('it claims success after {} failed results and no other', count(*)) AS detail,
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
COMMENT ON VIEW contradictions IS 'An answer claims success, and every result that it answers is an error: one row for each.';
COMMENT ON COLUMN contradictions.session_id IS 'The session.';
COMMENT ON COLUMN contradictions.lane IS 'The lane.';
COMMENT ON COLUMN contradictions.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN contradictions.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN contradictions.about IS 'The tools.';
COMMENT ON COLUMN contradictions.value IS 'Results that it answers. [results]';
COMMENT ON COLUMN contradictions.threshold IS 'What it takes. [results]';
COMMENT ON COLUMN contradictions.detail IS 'How many failed results it answers.';
COMMENT ON COLUMN contradictions.evidence_id IS 'The attempt that answers so.';

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
SELECT 'repeated_tool_errors' AS signature, * FROM repeated_tool_errors
UNION ALL
SELECT 'contradictions' AS signature, * FROM contradictions;
COMMENT ON VIEW diagnoses IS 'All places where a failure signature fires.';
COMMENT ON COLUMN diagnoses.signature IS 'The signature: the name of the view that has more about the other columns.';
COMMENT ON COLUMN diagnoses.session_id IS 'The session.';
COMMENT ON COLUMN diagnoses.lane IS 'The lane.';
COMMENT ON COLUMN diagnoses.turn IS 'The turn within the lane, from 1, or NULL.';
COMMENT ON COLUMN diagnoses.at_ns IS 'When. [ns since 1970 UTC]';
COMMENT ON COLUMN diagnoses.about IS 'What it is about: a tool, a model, a hook, what broke a cache.';
COMMENT ON COLUMN diagnoses.value IS 'What was measured.';
COMMENT ON COLUMN diagnoses.threshold IS 'What it was held against.';
COMMENT ON COLUMN diagnoses.detail IS 'More about it, for people.';
COMMENT ON COLUMN diagnoses.evidence_id IS 'The call, the attempt or the interaction that shows it.';
