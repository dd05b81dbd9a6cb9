"""Trial of a new fixture: it is replayed twice, in fresh processes and in different environments."""
