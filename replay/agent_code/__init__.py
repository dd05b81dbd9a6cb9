"""The agent's own code: its project, call sites, threads, entry, and state that earlier runs left."""
