"""Divergences: the first one as a value, its text, and the diff of two sessions."""
