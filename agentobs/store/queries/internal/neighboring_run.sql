-- Which session with the same name started last before one session, and is it a run of the same task?
--
-- $session_id: the session. If none started before it, the result is the first one after it, and `is_later` is true.
-- `is_same_task`: both have the same entry point and the same first messages, by their digests; false if a digest is
-- unknown.
WITH this AS (
    SELECT name, min(started_ns) AS started_ns, any_value(entry) AS entry FROM session_starts
    WHERE session_id = $session_id::VARCHAR
    GROUP BY name
), neighbor AS (
    SELECT
        starts.session_id, starts.started_ns,
        starts.entry IS NOT DISTINCT FROM this.entry AS is_same_entry,
        starts.started_ns > this.started_ns AS is_later
    FROM session_starts AS starts
    JOIN this USING (name)
    WHERE starts.session_id <> $session_id::VARCHAR
    ORDER BY is_later, abs(starts.started_ns - this.started_ns), starts.session_id DESC
    LIMIT 1
), first_messages AS (
    SELECT attempts.session_id, arg_min(zones.messages, (attempts.started_ns, attempts.session_sequence)) AS digest
    FROM attempts
    JOIN zones ON attempts.session_id = zones.session_id AND attempts.attempt_id = zones.attempt_id
    WHERE
        attempts.lane = 'main' AND attempts.makes_turns
        AND attempts.session_id IN ($session_id::VARCHAR, (SELECT session_id FROM neighbor))
    GROUP BY attempts.session_id
)
SELECT
    session_id, started_ns, is_later,
    is_same_entry AND coalesce((SELECT count(*) = 2 AND count(DISTINCT digest) = 1 FROM first_messages), false)
        AS is_same_task
FROM neighbor;
