-- Which tool calls does the response of one attempt contain?
SELECT * FROM tool_calls
WHERE session_id = $session_id::VARCHAR AND attempt_id = $attempt_id::VARCHAR
ORDER BY ordinal
LIMIT 200;
