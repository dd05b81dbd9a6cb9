-- Which sessions were deleted, completely or only their content?
SELECT DISTINCT session_id FROM prunings WHERE session_id IS NOT NULL;
