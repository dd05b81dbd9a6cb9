-- How long does it take until the first chunk of a response arrives, by model?
--
-- $session_id: only this session, or NULL. $since_ns, $until_ns: only calls sent from the first time on and before the
-- second, or NULL. Only complete streamed responses of the provider count. The time is measured from sending the
-- attempt to the first bytes of the stream. The last three columns are about the first token, for the calls in which it
-- was recorded. Percentiles are exact.
SELECT
    coalesce(model, model_requested) AS model,
    count(*) AS calls,
    quantile_disc(first_chunk_ns, 0.5) AS p50_ns,
    quantile_disc(first_chunk_ns, 0.95) AS p95_ns,
    quantile_disc(first_chunk_ns, 0.99) AS p99_ns,
    max(first_chunk_ns) AS max_ns,
    count(first_token_ns) AS token_calls,
    quantile_disc(first_token_ns, 0.5) AS token_p50_ns,
    quantile_disc(first_token_ns, 0.95) AS token_p95_ns
FROM attempts
WHERE
    streamed AND outcome = 'ok' AND makes_turns AND first_chunk_ns IS NOT NULL AND origin = 'live'
    AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
GROUP BY coalesce(model, model_requested)
ORDER BY p50_ns DESC, model;
