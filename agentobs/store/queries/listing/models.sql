-- How many sessions used each model?
--
-- $limit: the maximum number of models.
SELECT model AS name, count(*) AS sessions FROM (SELECT unnest(models) AS model FROM app.listing)
GROUP BY model ORDER BY sessions DESC, name LIMIT $limit::BIGINT;
