-- Which notes does the usage of one attempt have?
SELECT DISTINCT note FROM usage
WHERE session_id = $session_id::VARCHAR AND attempt_id = $attempt_id::VARCHAR AND note IS NOT NULL;
