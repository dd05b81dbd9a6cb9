-- Which sessions were deleted, facts and content?
SELECT DISTINCT session_id FROM prunings WHERE scope = 'all';
