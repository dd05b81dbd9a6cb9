-- The ledger: everything that the provider counted, why a count is an estimate, and one name a model.
--
-- Nothing of what was counted is left out: kinds that have no column of their own stand in maps.

ALTER TABLE usage ADD COLUMN web_fetch_requests BIGINT DEFAULT 0;
ALTER TABLE usage ADD COLUMN code_execution_requests BIGINT DEFAULT 0;
ALTER TABLE usage ADD COLUMN server_requests MAP(VARCHAR, BIGINT);
ALTER TABLE usage ADD COLUMN other_counts MAP(VARCHAR, BIGINT);
ALTER TABLE usage ADD COLUMN note VARCHAR;
ALTER TABLE usage ADD COLUMN batch_result_id VARCHAR;
COMMENT ON COLUMN usage.certainty IS '`exact`; `lower_bound` where a stream ended before it gave its last counts; `estimated` where `note` names a count that was none.';
COMMENT ON COLUMN usage.web_fetch_requests IS 'Pages that the provider fetched; they cost their tokens and nothing more. [requests]';
COMMENT ON COLUMN usage.code_execution_requests IS 'Runs of code by the provider; their time is billed beyond a free allowance, which no usage tells. [requests]';
COMMENT ON COLUMN usage.server_requests IS 'Requests of other kinds that the provider ran, by its name for them; NULL without any. They have no price here. [requests]';
COMMENT ON COLUMN usage.other_counts IS 'Counts that this version does not know, by their names; NULL without any. They are not billed here.';
COMMENT ON COLUMN usage.note IS 'Why the counts are an estimate: `<count>:<what it was>`, several joined by `/`; such a count stands as 0. NULL where all were counts.';
COMMENT ON COLUMN usage.batch_result_id IS '`<batch id>/<custom_id>` of a result of the batch API, else NULL. Such a result counts once, however often it was fetched.';

ALTER TABLE prices ADD COLUMN canonical_model VARCHAR;
COMMENT ON COLUMN prices.canonical_model IS 'The one name of the model for all ways to write it: aliases, dated ids, ids of cloud platforms.';
COMMENT ON COLUMN prices.certainty IS '`exact`; `estimated`: no price is published for this context, `note` says what was assumed; `unknown_model`: no price at all.';
COMMENT ON COLUMN prices.price_version IS 'Which prices were asked: the version of genai-prices, the digest of the overlay of agentobs, and that of the user''s own file where there is one, joined by `+`.';

-- Why the cache missed: what changed in a request before what is new in it, and what the provider says.

CREATE TABLE prefixes (
    segment_id VARCHAR,
    sequence BIGINT,
    session_id VARCHAR,
    attempt_id VARCHAR,
    compared_attempt_id VARCHAR,
    changed VARCHAR,
    changed_message BIGINT,
    miss_reason VARCHAR,
    missed_tokens BIGINT
);
COMMENT ON TABLE prefixes IS 'Requests whose prompt does not just go on from an earlier one, and those of which the provider says that its cache missed.';
COMMENT ON COLUMN prefixes.segment_id IS 'The segment that holds the record.';
COMMENT ON COLUMN prefixes.sequence IS 'Its number within the segment.';
COMMENT ON COLUMN prefixes.session_id IS 'The session.';
COMMENT ON COLUMN prefixes.attempt_id IS 'The attempt.';
COMMENT ON COLUMN prefixes.compared_attempt_id IS 'The earlier attempt that it was compared with, or NULL.';
COMMENT ON COLUMN prefixes.changed IS 'What changed first, in the order of the prompt: `model`, `tools`, `system`, `parameters` (tool choice, thinking) or `messages`; NULL where nothing did. Marks of the cache make no difference.';
COMMENT ON COLUMN prefixes.changed_message IS 'The first message that changed, from 1; NULL unless `changed` is `messages`.';
COMMENT ON COLUMN prefixes.miss_reason IS 'The type of the provider''s diagnostics.cache_miss_reason, such as `tools_changed`, or NULL.';
COMMENT ON COLUMN prefixes.missed_tokens IS 'Input tokens that it says would have been read from the cache, about; NULL where it does not say. [tokens]';
