-- Of which sessions was the content deleted, or everything?
SELECT DISTINCT session_id FROM prunings WHERE session_id IS NOT NULL;
