-- What is the state of the content of one session: its mode, its source, when it was pruned, and its redactions?
SELECT
    (SELECT arg_min(content, started_ns) FROM session_starts WHERE session_id = $session_id) AS content,
    (SELECT arg_min(source, started_ns) FROM session_starts WHERE session_id = $session_id) AS source,
    (SELECT max(pruned_ns) FROM prunings WHERE session_id = $session_id) AS pruned_ns,
    (SELECT sum(redactions) FROM attempts WHERE session_id = $session_id) AS redactions;
