-- Which attempt contains each tool call of one session, did it fail, and which calls have the same input?
--
-- input_similarity is as in tool_uses; NULL for calls of the provider's tools.
SELECT calls.lane, calls.turn, calls.tool_use_id, calls.attempt_id, calls.ordinal, calls.is_error, uses.input_similarity
FROM tool_calls AS calls
LEFT JOIN tool_uses AS uses USING (session_id, attempt_id, ordinal, tool_use_id)
WHERE calls.session_id = $session_id::VARCHAR;
