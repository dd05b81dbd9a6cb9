-- Activity: lines that edits changed, the active time of a person, and the time to the first token.

CREATE OR REPLACE VIEW line_changes AS
SELECT
    calls.session_id,
    calls.lane,
    calls.turn,
    calls.attempt_id,
    calls.tool_use_id,
    calls.name,
    results.result_ns AS at_ns,
    CASE
        WHEN results.lines_added IS NOT NULL OR results.lines_removed IS NOT NULL THEN 'result'
        ELSE 'input'
    END AS source,
    coalesce(results.lines_added, calls.lines_added) AS lines_added,
    coalesce(results.lines_removed, calls.lines_removed) AS lines_removed
FROM tool_uses AS calls
JOIN answered_calls AS answered
    ON calls.session_id = answered.session_id AND calls.attempt_id = answered.attempt_id
    AND calls.ordinal = answered.ordinal
JOIN tool_results AS results ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
WHERE
    NOT results.is_error
    AND coalesce(results.lines_added, calls.lines_added, results.lines_removed, calls.lines_removed) IS NOT NULL;
COMMENT ON VIEW line_changes IS 'One row for each successful call of an edit tool: the lines that it added and removed.';
COMMENT ON COLUMN line_changes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN line_changes.lane IS 'The lane: `main`, or the lane of a sub-agent.';
COMMENT ON COLUMN line_changes.turn IS 'The turn within the lane, from 1.';
COMMENT ON COLUMN line_changes.attempt_id IS 'The attempt whose response contains the call.';
COMMENT ON COLUMN line_changes.tool_use_id IS 'The provider''s ID of the tool call.';
COMMENT ON COLUMN line_changes.name IS 'The name of the tool.';
COMMENT ON COLUMN line_changes.at_ns IS 'When the result was available. [ns since 1970 UTC]';
COMMENT ON COLUMN line_changes.source IS '`result`: the log of the client reports the changed lines; `input`: they are derived from the input of the call.';
COMMENT ON COLUMN line_changes.lines_added IS 'The added lines; NULL if unknown. [lines]';
COMMENT ON COLUMN line_changes.lines_removed IS 'The removed lines; NULL if unknown, as when a whole file was written. [lines]';

CREATE OR REPLACE VIEW person_activity AS
WITH prompts AS (
    -- From the end of an interaction of the main lane to the next prompt.
    SELECT
        starts.session_id,
        'prompt' AS kind,
        max(ends.ended_ns) OVER (
            PARTITION BY starts.session_id ORDER BY starts.started_ns, starts.interaction_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS started_ns,
        starts.started_ns AS ended_ns,
        starts.interaction_id AS id
    FROM interaction_starts AS starts
    LEFT JOIN interaction_ends AS ends
        ON starts.session_id = ends.session_id AND starts.interaction_id = ends.interaction_id
    WHERE starts.lane = 'main' AND coalesce(starts.query_source, 'main') = 'main'
), waits AS (
    SELECT session_id, kind, started_ns, ended_ns, id FROM prompts WHERE started_ns < ended_ns
    UNION ALL
    SELECT session_id, 'approval', at_ns - approval_wait_ns, at_ns, tool_use_id
    FROM permissions
    WHERE approval_requested AND resolver = 'person' AND approval_wait_ns > 0
), apart AS (
    -- Time in which several approvals were requested counts once.
    SELECT
        *,
        greatest(
            started_ns,
            coalesce(max(ended_ns) OVER (
                PARTITION BY session_id ORDER BY started_ns, ended_ns, id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0)
        ) AS counted_from_ns
    FROM waits
)
SELECT
    session_id,
    kind,
    id,
    started_ns,
    ended_ns,
    ended_ns - started_ns AS wait_ns,
    least(greatest(ended_ns - counted_from_ns, 0), 300000000000) AS active_ns
FROM apart;
COMMENT ON VIEW person_activity IS 'One row for each time in which the agent waited for a person: for a prompt after the end of an interaction, or for an approval. A person counts as active for at most five minutes of each wait, because a longer wait means that nobody was there. Overlapping waits count once.';
COMMENT ON COLUMN person_activity.session_id IS 'The ID of the session.';
COMMENT ON COLUMN person_activity.kind IS '`prompt`: reading the response and writing the next prompt; `approval`: deciding about a tool call.';
COMMENT ON COLUMN person_activity.id IS 'The interaction that the prompt started, or the ID of the tool call.';
COMMENT ON COLUMN person_activity.started_ns IS 'When the wait started. [ns since 1970 UTC]';
COMMENT ON COLUMN person_activity.ended_ns IS 'When the person answered. [ns since 1970 UTC]';
COMMENT ON COLUMN person_activity.wait_ns IS 'The duration of the wait. [ns]';
COMMENT ON COLUMN person_activity.active_ns IS 'The part of the wait that counts as active time, without the time of earlier waits that overlap it. [ns]';

CREATE OR REPLACE VIEW first_token_times AS
SELECT
    coalesce(model, model_requested) AS model,
    count(*) AS responses,
    count(first_token_ns) AS measured_responses,
    quantile_disc(first_token_ns, 0.5) AS p50_ns,
    quantile_disc(first_token_ns, 0.95) AS p95_ns,
    quantile_disc(first_token_ns, 0.99) AS p99_ns,
    max(first_token_ns) AS max_ns
FROM attempts
WHERE streamed AND outcome = 'ok' AND makes_turns AND origin = 'live'
GROUP BY ALL;
COMMENT ON VIEW first_token_times IS 'One row for each model: the time from sending a request to the first token of its streamed response. Percentiles are exact.';
COMMENT ON COLUMN first_token_times.model IS 'The model in the responses, or else in the requests.';
COMMENT ON COLUMN first_token_times.responses IS 'The number of complete streamed responses.';
COMMENT ON COLUMN first_token_times.measured_responses IS 'The number of these responses whose first token was recorded.';
COMMENT ON COLUMN first_token_times.p50_ns IS 'The median; NULL if no response was measured. [ns]';
COMMENT ON COLUMN first_token_times.p95_ns IS 'The 95th percentile; NULL if no response was measured. [ns]';
COMMENT ON COLUMN first_token_times.p99_ns IS 'The 99th percentile; NULL if no response was measured. [ns]';
COMMENT ON COLUMN first_token_times.max_ns IS 'The longest time; NULL if no response was measured. [ns]';
