"""Matching: which recorded exchange a live request corresponds to."""
