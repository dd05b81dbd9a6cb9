-- Which deleted sessions have an ID that starts or ends with a text, and on which day were they deleted?
--
-- $shortest: the minimum length of the text.
SELECT session_id, strftime(make_timestamp_ns(max(pruned_ns)), '%Y-%m-%d') AS day FROM prunings
WHERE scope = 'all' AND length($text) >= $shortest::BIGINT
    AND (starts_with(session_id, $text) OR ends_with(session_id, $text))
GROUP BY session_id;
