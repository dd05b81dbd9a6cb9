-- Agents that start others, and what keeps a long conversation going: whose request it is, and in which chain.

ALTER TABLE attempts ADD COLUMN chain_id VARCHAR;
ALTER TABLE attempts ADD COLUMN depth BIGINT;
COMMENT ON COLUMN attempts.chain_id IS 'The requests of one turn, those made for its upkeep (a summary, a hook) included; NULL where nobody said.';
COMMENT ON COLUMN attempts.depth IS 'The place of the request in its chain, from 1; all attempts at it have the same, and one that is made to answer a question of another is one deeper.';

ALTER TABLE session_starts ADD COLUMN continues_session_id VARCHAR;
ALTER TABLE session_starts ADD COLUMN relation VARCHAR;
COMMENT ON COLUMN session_starts.continues_session_id IS 'The earlier session that this one goes on from, by its full id; NULL where there is none.';
COMMENT ON COLUMN session_starts.relation IS '`resume`: it is the same conversation; `fork`: another one that begins like it; NULL where there is no earlier session.';

ALTER TABLE span_starts ADD COLUMN linked_span_id VARCHAR;
COMMENT ON COLUMN span_starts.linked_span_id IS 'The span of another trace that started this one, whose work outlives that; NULL where there is none.';
