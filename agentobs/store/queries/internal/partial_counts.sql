-- Which attempts of one session have output tokens that are a lower bound, because the response ended before its last
-- counts?
SELECT DISTINCT attempt_id FROM usage
WHERE session_id = $session_id::VARCHAR AND billed AND certainty = 'lower_bound'
ORDER BY attempt_id;
