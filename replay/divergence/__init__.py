"""Divergences: the description of a divergence, its rendering as text, and the comparison of two sessions."""
