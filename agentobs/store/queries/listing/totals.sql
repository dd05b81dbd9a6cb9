-- What are the totals of the listed sessions, and how certain is their cost?
--
-- $text, $digests, $found: only sessions whose searchable text contains the text, in lower case, or one of its digests, or
-- whose ID is in the list $found. $words, $word_digests: also sessions whose searchable text contains each of at least two
-- words, or one of the digests of the word. $model, $status, $signature: only sessions with this value. $cost_from,
-- $cost_to: only sessions whose cost is in this range, US dollars. $since_ns, $until_ns: only sessions that started from
-- the first time on and before the second. NULL means no filter.
SELECT
    count(*) AS sessions,
    coalesce(sum(turns), 0)::BIGINT AS turns,
    coalesce(sum(tool_calls), 0)::BIGINT AS tool_calls,
    coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens,
    coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
    coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
    coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
    sum(cost_usd) AS cost_usd,
    coalesce(sum(unpriced_calls), 0)::BIGINT AS unpriced_calls,
    CASE
        WHEN count(*) FILTER (WHERE cost_status = 'estimated') > 0 THEN 'estimated'
        WHEN count(*) FILTER (WHERE cost_status <> 'exact') > 0 THEN 'lower_bound'
        ELSE 'exact'
    END AS cost_status,
    coalesce(sum(lower_bound_calls), 0)::BIGINT AS lower_bound_calls,
    coalesce(sum(estimated_calls), 0)::BIGINT AS estimated_calls,
    count(*) FILTER (WHERE is_failure(status)) AS failed,
    count(*) FILTER (WHERE status = 'crashed') AS crashed,
    count(*) FILTER (WHERE status = 'incomplete') AS incomplete,
    arg_max(session_id, started_ns) FILTER (WHERE is_failure(status)) AS newest_failed,
    count(*) FILTER (WHERE status = 'running') AS running
FROM app.listing
WHERE
    ($text::VARCHAR IS NULL
        OR contains(words, $text::VARCHAR)
        OR (has_digests AND len(list_filter($digests::VARCHAR[], lambda digest: contains(words, digest))) > 0)
        OR (
            contains(words, ($words::VARCHAR[])[1])
            AND contains(words, ($words::VARCHAR[])[2])
            AND len(list_filter(($words::VARCHAR[])[3:], lambda word: NOT contains(words, word))) = 0
        )
        OR (has_digests AND len(list_filter(range(1, len($words::VARCHAR[]) + 1), lambda place: NOT (
            contains(words, ($words::VARCHAR[])[place])
            OR len(list_filter(($word_digests::VARCHAR[][])[place], lambda digest: contains(words, digest))) > 0
        ))) = 0)
        OR ($found::VARCHAR[] IS NOT NULL AND session_id IN (SELECT unnest($found::VARCHAR[]))))
    AND ($model::VARCHAR IS NULL OR list_contains(models, $model::VARCHAR))
    AND ($status::VARCHAR IS NULL OR status = $status::VARCHAR)
    AND ($signature::VARCHAR IS NULL OR session_id IN (
        SELECT session_id FROM app.found_signatures WHERE signature = $signature::VARCHAR
    ))
    AND ($cost_from::DECIMAL(38, 12) IS NULL OR cost_usd >= $cost_from::DECIMAL(38, 12))
    AND ($cost_to::DECIMAL(38, 12) IS NULL OR cost_usd <= $cost_to::DECIMAL(38, 12))
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT);
