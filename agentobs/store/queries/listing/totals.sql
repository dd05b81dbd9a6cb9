-- What are the totals of the listed sessions, and how certain is their cost?
--
-- $text, $digests, $found: only sessions whose searchable text or last error contains the text, in lower case, or one of
-- its digests, or whose ID is in the list $found. $words, $word_digests, $titled_ids, $titled_words: also sessions that
-- contain each of the words, in their searchable text, as a digest, or in their title; the last two are the sessions with
-- a word in their title, and the number of the word. $model, $status, $signature: only sessions with this value.
-- $cost_from, $cost_to: only sessions whose cost is in this range, US dollars. $since_ns, $until_ns: only sessions that
-- started from the first time on and before the second. NULL means no filter.
WITH titled AS (
    SELECT session_id, list(number) AS numbers
    FROM (SELECT unnest($titled_ids::VARCHAR[]) AS session_id, unnest($titled_words::BIGINT[]) AS number)
    GROUP BY session_id
), listing AS (
    SELECT
        listed.*,
        CASE WHEN $text::VARCHAR IS NOT NULL THEN
            concat_ws(chr(10), words, lower(last_errors.error), lower(last_errors.error_name))
        END AS searched
    FROM app.listing AS listed
    LEFT JOIN app.last_errors AS last_errors ON listed.session_id = last_errors.session_id
)
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
    count(*) FILTER (WHERE status IN ('failed', 'crashed', 'incomplete')) AS failed,
    count(*) FILTER (WHERE status = 'running') AS running
FROM listing
LEFT JOIN titled ON listing.session_id = titled.session_id
WHERE
    ($text::VARCHAR IS NULL OR contains(searched, $text::VARCHAR) OR len(list_filter($digests::VARCHAR[], lambda digest: contains(searched, digest))) > 0
        OR ($words::VARCHAR[] IS NOT NULL AND len(list_filter(range(1, len($words::VARCHAR[]) + 1), lambda place: NOT (
            contains(searched, ($words::VARCHAR[])[place])
            OR coalesce(len(list_filter(($word_digests::VARCHAR[][])[place], lambda digest: contains(searched, digest))) > 0, false)
            OR coalesce(list_contains(titled.numbers, place), false)
        ))) = 0)
        OR ($found::VARCHAR[] IS NOT NULL AND listing.session_id IN (SELECT unnest($found::VARCHAR[]))))
    AND ($model::VARCHAR IS NULL OR list_contains(models, $model::VARCHAR))
    AND ($status::VARCHAR IS NULL OR status = $status::VARCHAR)
    AND ($signature::VARCHAR IS NULL OR listing.session_id IN (SELECT session_id FROM app.found_signatures WHERE signature = $signature::VARCHAR))
    AND ($cost_from::DECIMAL(38, 12) IS NULL OR cost_usd >= $cost_from::DECIMAL(38, 12))
    AND ($cost_to::DECIMAL(38, 12) IS NULL OR cost_usd <= $cost_to::DECIMAL(38, 12))
    AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT);
