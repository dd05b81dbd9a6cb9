-- In how many sessions was each failure signature found?
SELECT signature AS name, count(*) AS sessions FROM app.fired GROUP BY ALL;
