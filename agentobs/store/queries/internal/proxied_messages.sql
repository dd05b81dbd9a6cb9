-- The message IDs of all responses that a proxy recorded for clients that tell their own session ID.
SELECT DISTINCT a.message_id
FROM attempts a JOIN session_starts s USING (session_id)
WHERE s.source IS DISTINCT FROM 'claude-code' AND s.tags['client_session'] IS NOT NULL AND a.message_id IS NOT NULL;
