ALTER TABLE attempts ADD COLUMN parameters MAP(VARCHAR, VARCHAR);
COMMENT ON COLUMN attempts.parameters IS 'The parameters of the request that are numbers, booleans or labels, as text, by their path in the body, such as `thinking.type`; NULL if there are none.';
