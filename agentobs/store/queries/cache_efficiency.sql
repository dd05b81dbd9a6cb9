-- Which sessions read the smallest share of their input from the cache?
--
-- $limit: the maximum number of rows, or NULL for a hundred.
SELECT session_id, calls, input_tokens, cache_read_tokens, cache_write_tokens, hit_ratio, saved_usd, cost_usd, cost_status
FROM cache_efficiency
ORDER BY hit_ratio NULLS LAST, session_id
LIMIT coalesce($limit::BIGINT, 100);
