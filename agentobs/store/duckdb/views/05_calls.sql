-- Joins between tool calls, their results and their permission decisions. The ID of a call is not sufficient: some
-- servers use one ID for all calls, and the agentobs loop replaces an ID that was used before.

CREATE OR REPLACE VIEW answered_calls AS
WITH linked AS (
    SELECT session_id, attempt_id, ordinal, tool_use_id, result_ns, segment_id, sequence
    FROM tool_results
    WHERE attempt_id IS NOT NULL
), unlinked AS (
    -- The result was available before its response had ended, so the call was recorded later (`is_early`); or the
    -- result was derived from a request.
    SELECT
        *,
        coalesce(lane, '') AS lane_key,
        CASE WHEN source = 'run' THEN coalesce(turn, 0) ELSE 0 END AS turn_key,
        source = 'run' AND turn IS NOT NULL AS is_early
    FROM tool_results
    WHERE attempt_id IS NULL
), keys AS (
    SELECT DISTINCT session_id, tool_use_id, lane_key, turn_key FROM unlinked
), unanswered AS (
    SELECT uses.*, keys.lane_key, keys.turn_key
    FROM tool_uses AS uses
    JOIN keys
        ON uses.session_id = keys.session_id AND uses.tool_use_id = keys.tool_use_id
        AND keys.lane_key IN ('', uses.lane) AND keys.turn_key IN (0, coalesce(uses.turn, 0))
    ANTI JOIN linked
        ON uses.session_id = linked.session_id AND uses.attempt_id = linked.attempt_id AND uses.ordinal = linked.ordinal
), matched AS (
    SELECT
        unlinked.*,
        before.attempt_id AS attempt_before,
        before.ordinal AS ordinal_before,
        later.attempt_id AS attempt_later,
        later.ordinal AS ordinal_later,
        CASE WHEN is_early THEN later.attempt_id IS NULL ELSE before.attempt_id IS NOT NULL END AS is_before
    FROM (SELECT * EXCLUDE (attempt_id, ordinal) FROM unlinked) AS unlinked
    ASOF LEFT JOIN unanswered AS before
        ON unlinked.session_id = before.session_id AND unlinked.tool_use_id = before.tool_use_id
        AND unlinked.lane_key = before.lane_key AND unlinked.turn_key = before.turn_key
        AND unlinked.result_ns >= before.requested_ns
    ASOF LEFT JOIN unanswered AS later
        ON unlinked.session_id = later.session_id AND unlinked.tool_use_id = later.tool_use_id
        AND unlinked.lane_key = later.lane_key AND unlinked.turn_key = later.turn_key
        AND unlinked.result_ns < later.requested_ns
), found AS (
    SELECT * FROM linked
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
-- A process and its fork may both execute a call that was requested before the fork; the first result counts.
QUALIFY row_number() OVER (
    PARTITION BY session_id, attempt_id, ordinal ORDER BY result_ns, segment_id, sequence
) = 1;
COMMENT ON VIEW answered_calls IS 'One row for each tool call that has a result: the call, and the record that contains the result.';
COMMENT ON COLUMN answered_calls.session_id IS 'The ID of the session.';
COMMENT ON COLUMN answered_calls.attempt_id IS 'The attempt whose response contains the call, as in tool_uses.';
COMMENT ON COLUMN answered_calls.ordinal IS 'The position of the call in the response, from 1, as in tool_uses.';
COMMENT ON COLUMN answered_calls.result_id IS 'The ID of the call in its result. It differs from the ID in tool_uses if the agentobs loop replaced an ID that had been used before.';
COMMENT ON COLUMN answered_calls.segment_id IS 'The segment that contains the result, as in tool_results.';
COMMENT ON COLUMN answered_calls.sequence IS 'The number of the result within the segment, as in tool_results.';

CREATE OR REPLACE VIEW decided_calls AS
SELECT
    decided.segment_id,
    decided.sequence,
    results.segment_id AS result_segment_id,
    results.sequence AS result_sequence
FROM permissions AS decided
-- A decision comes before the result of its call, and that result comes before the next call with the same ID.
ASOF JOIN (SELECT *, coalesce(lane, 'main') AS known_lane FROM tool_results) AS results
    ON decided.session_id = results.session_id AND decided.tool_use_id = results.tool_use_id
    AND decided.lane = results.known_lane AND decided.at_ns <= results.result_ns;
COMMENT ON VIEW decided_calls IS 'One row for each permission decision on a tool call that has a result.';
COMMENT ON COLUMN decided_calls.segment_id IS 'The segment that contains the decision, as in permissions.';
COMMENT ON COLUMN decided_calls.sequence IS 'The number of the decision within the segment, as in permissions.';
COMMENT ON COLUMN decided_calls.result_segment_id IS 'The segment that contains the result, as in tool_results.';
COMMENT ON COLUMN decided_calls.result_sequence IS 'The number of the result within the segment, as in tool_results.';
