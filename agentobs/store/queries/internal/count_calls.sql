-- How many billed calls does one session have?
SELECT count(*) AS calls FROM audited_costs WHERE session_id = $session_id::VARCHAR;
