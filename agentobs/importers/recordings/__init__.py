"""Recordings of other tools: cassettes, HAR files, and traces of agent-rewind and OrcaReplay."""
