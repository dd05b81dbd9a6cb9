-- Forks: which answers came from a recording, and after which turn a fork went live.

ALTER TABLE attempts ADD COLUMN origin VARCHAR;
UPDATE attempts SET origin = 'live';
COMMENT ON COLUMN attempts.origin IS '`live`: the provider was asked; `replayed`: a fork answered from a recording. Nothing was sent, and its usage is not billed.';

ALTER TABLE session_starts ADD COLUMN forked_turn BIGINT;
COMMENT ON COLUMN session_starts.forked_turn IS 'Of a session that `agentobs fork` made, the turn of the parent whose answer is the last replayed one; else NULL.';
