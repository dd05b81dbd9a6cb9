"""Agents that nobody here wrote, recorded and replayed as they are."""
