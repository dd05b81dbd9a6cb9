-- Which sessions have an error whose type contains a text?
--
-- $text: the text in lower case.
SELECT DISTINCT session_id FROM error_classes WHERE contains(lower(error_class), $text::VARCHAR);
