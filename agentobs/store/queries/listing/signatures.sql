-- In how many sessions was each failure signature found?
SELECT signature AS name, count(*) AS sessions FROM app.found_signatures GROUP BY ALL;
