"""Matching: which recorded exchange a live one is."""
