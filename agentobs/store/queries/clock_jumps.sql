-- Where did the wall clock jump while a session was recorded?
--
-- $since_ns: only sessions that started at or after this time, or NULL. $now_ns: the current time, or NULL. what is the
-- kind of jump: `backwards` if the time of a later record is more than a second earlier; `end_before_start`; or
-- `future` if a session starts more than a minute after the current time. A jump forward within a session cannot be
-- distinguished from a wait. Interactions without their own span were derived from requests, and may be wrong in
-- recordings of older versions, so they say nothing about the clock.
WITH chosen AS (
    SELECT session_id, min(started_ns) AS started_ns
    FROM session_starts
    GROUP BY session_id
    HAVING $since_ns::BIGINT IS NULL OR min(started_ns) >= $since_ns::BIGINT
), timed AS (
    -- Only facts that are recorded at the time that they contain. Exception: the spans of other clients' calls are
    -- recorded when they end, and telemetry has the times of the client, so both are excluded.
    SELECT session_id, session_sequence, at_ns
    FROM events
    SEMI JOIN chosen USING (session_id)
    WHERE kind <> 'telemetry'
    UNION ALL
    SELECT starts.session_id, starts.session_sequence, starts.started_ns
    FROM span_starts AS starts
    SEMI JOIN chosen USING (session_id)
    ANTI JOIN attempts
        ON starts.session_id = attempts.session_id AND starts.span_id = right(attempts.attempt_id, 16)
), ordered AS (
    SELECT
        session_id,
        at_ns,
        at_ns - max(at_ns) OVER (
            PARTITION BY session_id ORDER BY session_sequence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS ahead_ns
    FROM timed
    WHERE session_sequence IS NOT NULL
), found AS (
    SELECT session_id, 'backwards' AS what, at_ns, -ahead_ns AS jump_ns
    FROM ordered
    WHERE ahead_ns < -1000000000
    UNION ALL
    SELECT spans.session_id, 'end_before_start' AS what, started_ns, started_ns - ended_ns AS jump_ns
    FROM spans
    SEMI JOIN chosen USING (session_id)
    WHERE ended_ns < started_ns
    UNION ALL
    SELECT interactions.session_id, 'end_before_start' AS what, started_ns, started_ns - ended_ns AS jump_ns
    FROM interactions
    SEMI JOIN chosen USING (session_id)
    SEMI JOIN span_starts AS own
        ON interactions.session_id = own.session_id AND own.name = 'interaction'
        AND interactions.interaction_id = coalesce(own.interaction_id, own.trace_id)
    WHERE ended_ns < started_ns
    UNION ALL
    SELECT session_id, 'future' AS what, started_ns, started_ns - $now_ns::BIGINT AS jump_ns
    FROM chosen
    WHERE started_ns > $now_ns::BIGINT + 60000000000
)
SELECT session_id, what, min(at_ns) AS at_ns, count(*) AS times, max(jump_ns) AS jump_ns
FROM found
GROUP BY session_id, what
ORDER BY at_ns DESC, session_id, what;
