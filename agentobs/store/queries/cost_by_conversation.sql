-- What did each conversation cost, including the sessions that resume it, most expensive first?
--
-- $since_ns, $until_ns: only calls sent from the first time on and before the second, or NULL. $limit: the maximum
-- number of rows, or NULL for all. Each session is counted in one conversation only; a fork is a separate conversation.
SELECT
    coalesce(parts.conversation_id, spent.session_id) AS conversation_id,
    count(DISTINCT spent.session_id) AS sessions,
    count(*) AS calls,
    sum(spent.input_tokens) AS input_tokens,
    sum(spent.output_tokens) AS output_tokens,
    sum(spent.cache_read_tokens) AS cache_read_tokens,
    sum(spent.cache_write_tokens) AS cache_write_tokens,
    sum(spent.cost_usd) AS cost_usd,
    summed_status(spent.cost_usd, spent.cost_status) AS cost_status,
    count(*) FILTER (WHERE spent.cost_usd IS NULL) AS unpriced_calls
FROM audited_costs AS spent
LEFT JOIN conversation_parts AS parts ON spent.session_id = parts.session_id
WHERE
    ($since_ns::BIGINT IS NULL OR spent.at_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR spent.at_ns < $until_ns::BIGINT)
GROUP BY ALL
ORDER BY cost_usd DESC NULLS LAST, conversation_id
LIMIT coalesce($limit::BIGINT, 9223372036854775807);
