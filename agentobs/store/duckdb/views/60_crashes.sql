-- Missing data, and operations that were in progress when a process crashed.

CREATE OR REPLACE VIEW session_records AS
WITH ended AS (
    SELECT
        session_id,
        arg_max(emitted, ended_ns) AS emitted,
        arg_max(written, ended_ns) AS written,
        max(ended_ns) AS ended_ns
    FROM session_ends
    GROUP BY session_id
), missing AS (
    SELECT session_id, sum(records)::BIGINT AS dropped FROM gaps GROUP BY session_id
)
SELECT
    coalesce(ended.session_id, missing.session_id) AS session_id,
    ended.emitted AS emitted,
    ended.written AS written,
    coalesce(missing.dropped, 0) AS dropped,
    ended.emitted = ended.written + coalesce(missing.dropped, 0) AS is_exact
FROM ended
FULL JOIN missing ON ended.session_id = missing.session_id;
COMMENT ON VIEW session_records IS 'One row for each session that ended or has dropped records: whether all of its records are accounted for.';
COMMENT ON COLUMN session_records.session_id IS 'The ID of the session.';
COMMENT ON COLUMN session_records.emitted IS 'The number of records that its process had emitted when the session ended; NULL if the session has not ended. [records]';
COMMENT ON COLUMN session_records.written IS 'The number of these records that were written; NULL if the session has not ended. [records]';
COMMENT ON COLUMN session_records.dropped IS 'The number of records in `gaps`, which also contains the reasons. [records]';
COMMENT ON COLUMN session_records.is_exact IS 'Whether emitted = written + dropped; NULL if the session has not ended.';

CREATE OR REPLACE VIEW crashes AS
WITH crashed AS (
    SELECT session_id, name, started_ns, last_activity_ns FROM sessions WHERE status = 'crashed' AND NOT is_telemetry
), requests AS (
    SELECT session_id, count(*) AS open FROM attempts WHERE outcome = 'crashed' GROUP BY session_id
), calls AS (
    SELECT uses.session_id, count(*) AS open
    FROM tool_uses AS uses
    ANTI JOIN answered_calls AS answered
        ON uses.session_id = answered.session_id AND uses.attempt_id = answered.attempt_id
        AND uses.ordinal = answered.ordinal
    GROUP BY uses.session_id
), inside AS (
    SELECT starts.session_id, count(*) AS open
    FROM span_starts AS starts
    ANTI JOIN span_ends AS ends
        ON starts.session_id = ends.session_id AND starts.span_id = ends.span_id
    GROUP BY starts.session_id
)
SELECT
    crashed.session_id AS session_id,
    crashed.name AS name,
    crashed.started_ns AS started_ns,
    crashed.last_activity_ns AS last_activity_ns,
    coalesce(requests.open, 0) AS open_requests,
    coalesce(calls.open, 0) AS open_tool_calls,
    coalesce(inside.open, 0) AS open_spans
FROM crashed
LEFT JOIN requests ON crashed.session_id = requests.session_id
LEFT JOIN calls ON crashed.session_id = calls.session_id
LEFT JOIN inside ON crashed.session_id = inside.session_id;
COMMENT ON VIEW crashes IS 'One row for each session whose process died before the session ended, with the operations that were in progress.';
COMMENT ON COLUMN crashes.session_id IS 'The ID of the session.';
COMMENT ON COLUMN crashes.name IS 'The name given by the author.';
COMMENT ON COLUMN crashes.started_ns IS 'When the session started. [ns since 1970 UTC]';
COMMENT ON COLUMN crashes.last_activity_ns IS 'The last known activity of the session. [ns since 1970 UTC]';
COMMENT ON COLUMN crashes.open_requests IS 'The number of requests that had been sent and whose responses had not ended.';
COMMENT ON COLUMN crashes.open_tool_calls IS 'The number of tool calls without a result.';
COMMENT ON COLUMN crashes.open_spans IS 'The number of spans that had not ended.';
