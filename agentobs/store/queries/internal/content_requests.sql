-- Which requests and responses of a session have to be read for all of its texts?
--
-- $session_id: the session. is_repeated is true if a later request of the session repeats all messages of the request,
-- so that only the later one has to be read.
WITH repeated AS (
    SELECT DISTINCT earlier.attempt_id
    FROM zones AS earlier
    JOIN zones AS later
        ON later.session_id = earlier.session_id
        AND later.compared_attempt_id = earlier.attempt_id
        AND later.repeated = earlier.messages
    WHERE earlier.session_id = $session_id::VARCHAR
)
SELECT
    attempts.segment_id,
    attempts.request_content,
    attempts.response_content,
    repeated.attempt_id IS NOT NULL AS is_repeated
FROM attempts
LEFT JOIN repeated ON attempts.attempt_id = repeated.attempt_id
WHERE attempts.session_id = $session_id::VARCHAR AND attempts.request_content IS NOT NULL
ORDER BY attempts.segment_id, attempts.sequence;
