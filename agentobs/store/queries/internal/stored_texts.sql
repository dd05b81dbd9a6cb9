-- Which of the given names and reasons occur in the facts?
--
-- $texts: a list of names and reasons.
SELECT name FROM session_starts WHERE list_contains($texts::VARCHAR[], name)
UNION
SELECT reason FROM session_ends WHERE list_contains($texts::VARCHAR[], reason);
