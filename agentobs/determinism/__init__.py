"""Determinism for foreign programs: callers, recorded functions, patched clock and random numbers."""
