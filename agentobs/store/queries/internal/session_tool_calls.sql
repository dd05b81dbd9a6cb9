-- Which attempt contains each tool call of one session, and did it fail?
SELECT lane, turn, tool_use_id, attempt_id, ordinal, is_error FROM tool_calls WHERE session_id = $session_id::VARCHAR;
