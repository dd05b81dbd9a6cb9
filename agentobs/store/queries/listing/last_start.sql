-- When did the last session start?
SELECT max(started_ns) AS last_ns FROM app.listing;
