-- How many sessions have each status?
SELECT status AS name, count(*) AS sessions FROM app.listing GROUP BY status ORDER BY name;
