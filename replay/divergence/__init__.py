"""Divergences: the first one as a value, its text, and the comparison of two sessions."""
