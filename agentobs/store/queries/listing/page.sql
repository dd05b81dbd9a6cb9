-- Which sessions are on one page of the list?
--
-- $text, $digests, $found: only sessions whose searchable text or last error contains the text, in lower case, or one of
-- its digests, or whose ID is in the list $found. $words, $word_digests, $titled_ids, $titled_words: also sessions that
-- contain each of the words, in their searchable text, as a digest, or in their title; the last two are the sessions with
-- a word in their title, and the number of the word. $model, $status, $signature: only sessions with this value.
-- $cost_from, $cost_to: only sessions whose cost is in this range, US dollars. $since_ns, $until_ns: only sessions that
-- started from the first time on and before the second. NULL means no filter.
--
-- $sort: the column, as in the URL of the page; `attention` means failed sessions, then those with failure signatures, by
-- cost. $descending: whether the largest values come first. $limit, $offset:
-- the page.
WITH titled AS (
    SELECT session_id, list(number) AS numbers
    FROM (SELECT unnest($titled_ids::VARCHAR[]) AS session_id, unnest($titled_words::BIGINT[]) AS number)
    GROUP BY session_id
), found AS (
    SELECT session_id, list(signature ORDER BY signature) AS fired FROM app.found_signatures GROUP BY session_id
), chosen AS (
    SELECT
        listing.* EXCLUDE (words, fingerprint),
        coalesce(found.fired, []) AS fired,
        CASE $sort::VARCHAR WHEN 'name' THEN name WHEN 'status' THEN status WHEN 'model' THEN models[1] END AS text_key,
        CASE $sort::VARCHAR
            WHEN 'started' THEN started_ns
            WHEN 'duration' THEN duration_ns
            WHEN 'turns' THEN turns
            WHEN 'requests' THEN llm_requests
            WHEN 'tools' THEN tool_calls
            WHEN 'input' THEN input_tokens
            WHEN 'cache_read' THEN cache_read_tokens
            WHEN 'cache_write' THEN cache_write_tokens
            WHEN 'output' THEN output_tokens
            WHEN 'tokens' THEN input_tokens + cache_read_tokens + cache_write_tokens + output_tokens
            WHEN 'signatures' THEN len(coalesce(found.fired, []))
            WHEN 'attention' THEN CASE
                WHEN status IN ('failed', 'crashed', 'incomplete') THEN 2 WHEN found.fired IS NOT NULL THEN 1 ELSE 0
            END
        END AS number_key,
        CASE WHEN $sort::VARCHAR IN ('cost', 'attention') THEN cost_usd END AS money_key,
        last_errors.* EXCLUDE (session_id),
        CASE WHEN $text::VARCHAR IS NOT NULL THEN
            concat_ws(chr(10), words, lower(last_errors.error), lower(last_errors.error_name))
        END AS searched
    FROM app.listing AS listing
    LEFT JOIN found USING (session_id)
    LEFT JOIN titled USING (session_id)
    LEFT JOIN app.last_errors AS last_errors USING (session_id)
    WHERE
        ($text::VARCHAR IS NULL OR contains(searched, $text::VARCHAR) OR len(list_filter($digests::VARCHAR[], lambda digest: contains(searched, digest))) > 0
        OR ($words::VARCHAR[] IS NOT NULL AND len(list_filter(range(1, len($words::VARCHAR[]) + 1), lambda place: NOT (
            contains(searched, ($words::VARCHAR[])[place])
            OR coalesce(len(list_filter(($word_digests::VARCHAR[][])[place], lambda digest: contains(searched, digest))) > 0, false)
            OR coalesce(list_contains(titled.numbers, place), false)
        ))) = 0)
        OR ($found::VARCHAR[] IS NOT NULL AND session_id IN (SELECT unnest($found::VARCHAR[]))))
        AND ($model::VARCHAR IS NULL OR list_contains(models, $model::VARCHAR))
        AND ($status::VARCHAR IS NULL OR status = $status::VARCHAR)
        AND ($signature::VARCHAR IS NULL OR session_id IN (SELECT session_id FROM app.found_signatures WHERE signature = $signature::VARCHAR))
        AND ($cost_from::DECIMAL(38, 12) IS NULL OR cost_usd >= $cost_from::DECIMAL(38, 12))
        AND ($cost_to::DECIMAL(38, 12) IS NULL OR cost_usd <= $cost_to::DECIMAL(38, 12))
        AND ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
)
SELECT * EXCLUDE (text_key, number_key, money_key, searched)
FROM chosen
ORDER BY
    CASE WHEN $descending::BOOLEAN THEN text_key END DESC NULLS LAST,
    CASE WHEN $descending::BOOLEAN THEN number_key END DESC NULLS LAST,
    CASE WHEN $descending::BOOLEAN THEN money_key END DESC NULLS LAST,
    CASE WHEN NOT $descending::BOOLEAN THEN text_key END ASC NULLS LAST,
    CASE WHEN NOT $descending::BOOLEAN THEN number_key END ASC NULLS LAST,
    CASE WHEN NOT $descending::BOOLEAN THEN money_key END ASC NULLS LAST,
    CASE WHEN $descending::BOOLEAN THEN session_id END DESC,
    session_id ASC
LIMIT $limit::BIGINT OFFSET $offset::BIGINT;
