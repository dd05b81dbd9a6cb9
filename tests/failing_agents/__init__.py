"""Failing agents in the style of other authors, and the proof that their failures become tests."""
