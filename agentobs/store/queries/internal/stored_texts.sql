-- Which of the given digests occur in the facts as a name, a tag, a reason or the name of a tool?
--
-- $texts: a list of digests.
SELECT name FROM session_starts WHERE list_contains($texts::VARCHAR[], name)
UNION
SELECT value FROM (SELECT unnest(map_values(tags)) AS value FROM session_starts)
WHERE list_contains($texts::VARCHAR[], value)
UNION
SELECT reason FROM session_ends WHERE list_contains($texts::VARCHAR[], reason)
UNION
SELECT name FROM tool_uses WHERE list_contains($texts::VARCHAR[], name)
UNION
SELECT name FROM provider_tool_uses WHERE list_contains($texts::VARCHAR[], name)
UNION
SELECT batch_result_id FROM usage WHERE list_contains($texts::VARCHAR[], batch_result_id);
