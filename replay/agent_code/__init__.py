"""The agent's code: its project, call sites, threads and entry, and the state that earlier runs have left."""
