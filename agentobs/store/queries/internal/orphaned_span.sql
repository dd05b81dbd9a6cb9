-- Does one session have a span that never ended? One row if it does.
SELECT 1 AS found FROM spans WHERE session_id = $session_id::VARCHAR AND status = 'orphaned' LIMIT 1;
