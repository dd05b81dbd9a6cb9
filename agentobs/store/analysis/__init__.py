"""Answers computed from query results: diagnosis, wall time, earlier conversations."""
