"""Trial: a new fixture is replayed twice in fresh processes that differ from the recorded one."""
