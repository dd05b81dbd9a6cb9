-- Which sessions were recorded last? The example on the page for SQL.
SELECT name, status, turns, cost_usd
FROM sessions
WHERE NOT is_telemetry
ORDER BY started_ns DESC
LIMIT 20;
