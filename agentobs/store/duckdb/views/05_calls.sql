-- Which fact belongs to which tool call. Ids of calls recur: some servers have one for all, and our own loop gives a
-- call whose ID was used before another one. So nothing is joined by the ID alone.

CREATE OR REPLACE VIEW answered_calls AS
WITH told AS (
    SELECT session_id, attempt_id, ordinal, tool_use_id, result_ns, segment_id, sequence
    FROM tool_results
    WHERE attempt_id IS NOT NULL
), untold AS (
    -- It was there before its answer had ended, so that its use comes later; or it was read off the wire.
    SELECT
        *,
        coalesce(lane, '') AS lane_key,
        CASE WHEN source = 'run' THEN coalesce(turn, 0) ELSE 0 END AS turn_key,
        source = 'run' AND turn IS NOT NULL AS is_early
    FROM tool_results
    WHERE attempt_id IS NULL
), keys AS (
    SELECT DISTINCT session_id, tool_use_id, lane_key, turn_key FROM untold
), unanswered AS (
    SELECT uses.*, keys.lane_key, keys.turn_key
    FROM tool_uses AS uses
    JOIN keys
        ON uses.session_id = keys.session_id AND uses.tool_use_id = keys.tool_use_id
        AND keys.lane_key IN ('', uses.lane) AND keys.turn_key IN (0, coalesce(uses.turn, 0))
    ANTI JOIN told
        ON uses.session_id = told.session_id AND uses.attempt_id = told.attempt_id AND uses.ordinal = told.ordinal
), matched AS (
    SELECT
        untold.*,
        before.attempt_id AS attempt_before,
        before.ordinal AS ordinal_before,
        later.attempt_id AS attempt_later,
        later.ordinal AS ordinal_later,
        CASE WHEN is_early THEN later.attempt_id IS NULL ELSE before.attempt_id IS NOT NULL END AS is_before
    FROM (SELECT * EXCLUDE (attempt_id, ordinal) FROM untold) AS untold
    ASOF LEFT JOIN unanswered AS before
        ON untold.session_id = before.session_id AND untold.tool_use_id = before.tool_use_id
        AND untold.lane_key = before.lane_key AND untold.turn_key = before.turn_key
        AND untold.result_ns >= before.requested_ns
    ASOF LEFT JOIN unanswered AS later
        ON untold.session_id = later.session_id AND untold.tool_use_id = later.tool_use_id
        AND untold.lane_key = later.lane_key AND untold.turn_key = later.turn_key
        AND untold.result_ns < later.requested_ns
), found AS (
    SELECT * FROM told
    UNION ALL BY NAME
    SELECT
        session_id,
        CASE WHEN is_before THEN attempt_before ELSE attempt_later END AS attempt_id,
        CASE WHEN is_before THEN ordinal_before ELSE ordinal_later END AS ordinal,
        tool_use_id, result_ns, segment_id, sequence
    FROM matched
)
SELECT session_id, attempt_id, ordinal, tool_use_id AS result_id, segment_id, sequence
FROM found
WHERE attempt_id IS NOT NULL
-- A process and its fork may both answer a call made before the fork: the first answer counts.
QUALIFY row_number() OVER (
    PARTITION BY session_id, attempt_id, ordinal ORDER BY result_ns, segment_id, sequence
) = 1;
COMMENT ON VIEW answered_calls IS 'One row for each tool call that has a result: which call it is, and where that result stands.';
COMMENT ON COLUMN answered_calls.session_id IS 'The session.';
COMMENT ON COLUMN answered_calls.attempt_id IS 'The attempt whose answer contains the call, as in tool_uses.';
COMMENT ON COLUMN answered_calls.ordinal IS 'The place of the call in that answer, from 1, as in tool_uses.';
COMMENT ON COLUMN answered_calls.result_id IS 'The ID of the call in its result: differs from tool_uses if our loop replaced an ID that had been used before.';
COMMENT ON COLUMN answered_calls.segment_id IS 'The segment that holds the result, as in tool_results.';
COMMENT ON COLUMN answered_calls.sequence IS 'Its number within the segment, as in tool_results.';

CREATE OR REPLACE VIEW decided_calls AS
SELECT
    decided.segment_id,
    decided.sequence,
    results.segment_id AS result_segment_id,
    results.sequence AS result_sequence
FROM permissions AS decided
-- A decision comes before the result of its call, and the next call of that ID after it.
ASOF JOIN (SELECT *, coalesce(lane, 'main') AS own_lane FROM tool_results) AS results
    ON decided.session_id = results.session_id AND decided.tool_use_id = results.tool_use_id
    AND decided.lane = results.own_lane AND decided.at_ns <= results.result_ns;
COMMENT ON VIEW decided_calls IS 'One row for each decision whether a tool call may run, of a call that has a result.';
COMMENT ON COLUMN decided_calls.segment_id IS 'The segment that holds the decision, as in permissions.';
COMMENT ON COLUMN decided_calls.sequence IS 'Its number within the segment, as in permissions.';
COMMENT ON COLUMN decided_calls.result_segment_id IS 'The segment that holds the result, as in tool_results.';
COMMENT ON COLUMN decided_calls.result_sequence IS 'Its number within the segment, as in tool_results.';
