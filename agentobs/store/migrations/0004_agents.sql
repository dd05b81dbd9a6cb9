-- Agents that start others, and what keeps a long conversation going: whose request it is, and in which chain.

ALTER TABLE attempts ADD COLUMN chain_id VARCHAR;
ALTER TABLE attempts ADD COLUMN depth BIGINT;
COMMENT ON COLUMN attempts.chain_id IS 'The requests of one turn, those made for its upkeep (a summary, a hook) included; NULL where nobody said.';
COMMENT ON COLUMN attempts.depth IS 'The place of the request in its chain, from 1; all attempts at it have the same, and one that is made to answer a question of another is one deeper.';
