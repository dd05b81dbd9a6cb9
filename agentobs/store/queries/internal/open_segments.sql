-- Which segments are written to by a running process?
--
-- $limit: the maximum number of rows.
SELECT segment_id FROM segments WHERE state = 'open' LIMIT $limit::BIGINT;
