-- What were the outcomes of hooks?
--
-- $session_id: only this session, or NULL. $since_ns: only hooks that ended at or after this time, or NULL. One row for
-- each hook and outcome: `success`, `blocking`, `non_blocking_error` or `cancelled`. If hook events were sampled, the
-- counts are unbiased estimates of the total.
SELECT
    coalesce(labels['hook'], 'hook') AS hook,
    label AS outcome,
    round(estimated_count(rate))::BIGINT AS times,
    round(estimated_sum((coalesce(numbers['rewrites'], 0) > 0)::INTEGER, rate))::BIGINT AS rewrites,
    round(estimated_sum((coalesce(numbers['overridden'], 0) > 0)::INTEGER, rate))::BIGINT AS overridden,
    round(estimated_sum(coalesce(numbers['requests'], 0), rate))::BIGINT AS model_requests,
    quantile_disc(numbers['duration_ns'], 0.5)::BIGINT AS p50_ns,
    quantile_disc(numbers['duration_ns'], 0.95)::BIGINT AS p95_ns,
    max(numbers['duration_ns'])::BIGINT AS max_ns
FROM events
WHERE
    kind = 'hook'
    AND ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
    AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
GROUP BY coalesce(labels['hook'], 'hook'), label
ORDER BY hook, times DESC, outcome;
