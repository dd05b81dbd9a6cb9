-- Which sessions are on one page of the list?
--
-- $text, $digests, $found: only sessions whose searchable text contains the text, in lower case, or one of its digests, or
-- whose ID is in the list $found. $words, $word_digests: also sessions whose searchable text contains each of at least two
-- words, or one of the digests of the word. $model, $status, $signature: only sessions with this value. $cost_from,
-- $cost_to: only sessions whose cost is in this range, US dollars. $since_ns, $until_ns: only sessions that started from
-- the first time on and before the second. NULL means no filter.
--
-- $session_id: only this session. is_checked: whether the failure signatures and the last error were computed; they are
-- empty before.
--
-- $sort: the column, as in the URL of the page; `attention` means failed sessions by day, then those with failed or denied
-- tool calls, then those with failure signatures, by cost. $descending: whether the largest values come first. $limit,
-- $offset: the page.
--
-- The sessions of the page are chosen by the few columns that this needs; the others are read for them only.
WITH chosen AS (
    SELECT
        rowid AS place,
        session_id,
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
            WHEN 'signatures' THEN signature_count
            WHEN 'attention' THEN attention(status, has_failed_calls, signature_count, started_ns)
        END AS number_key,
        CASE $sort::VARCHAR WHEN 'cost' THEN cost_usd WHEN 'attention' THEN attention_money(status, cost_usd) END AS money_key,
        CASE WHEN $sort::VARCHAR = 'attention' THEN started_ns END AS time_key
    FROM app.listing
    WHERE
        ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($text::VARCHAR IS NULL
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
        AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
), page AS (
    SELECT place, row_number() OVER () AS position
    FROM (
        FROM chosen
        ORDER BY
            CASE WHEN $descending::BOOLEAN THEN text_key END DESC NULLS LAST,
            CASE WHEN $descending::BOOLEAN THEN number_key END DESC NULLS LAST,
            CASE WHEN $descending::BOOLEAN THEN money_key END DESC NULLS LAST,
            CASE WHEN $descending::BOOLEAN THEN time_key END DESC,
            CASE WHEN NOT $descending::BOOLEAN THEN text_key END ASC NULLS LAST,
            CASE WHEN NOT $descending::BOOLEAN THEN number_key END ASC NULLS LAST,
            CASE WHEN NOT $descending::BOOLEAN THEN money_key END ASC NULLS LAST,
            CASE WHEN NOT $descending::BOOLEAN THEN time_key END ASC,
            CASE WHEN $descending::BOOLEAN THEN session_id END DESC,
            session_id ASC
        LIMIT $limit::BIGINT OFFSET $offset::BIGINT
    )
), shown AS (
    SELECT listing.* EXCLUDE (words, fact_words, title, has_digests, has_failed_calls, signature_count), page.position
    FROM app.listing AS listing
    JOIN page ON listing.rowid = page.place
), found AS (
    SELECT session_id, list(signature ORDER BY signature) AS fired
    FROM app.found_signatures SEMI JOIN shown USING (session_id)
    GROUP BY session_id
), checked AS (
    FROM app.checked SEMI JOIN shown USING (fingerprint)
)
SELECT
    shown.* EXCLUDE (position, fingerprint),
    coalesce(found.fired, []) AS fired,
    fingerprint IN (FROM checked) AS is_checked,
    last_errors.* EXCLUDE (session_id)
FROM shown
LEFT JOIN found ON shown.session_id = found.session_id
LEFT JOIN app.last_errors AS last_errors ON shown.session_id = last_errors.session_id
ORDER BY position;
