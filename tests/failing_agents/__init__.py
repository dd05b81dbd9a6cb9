"""Failing agents in the style of third parties, and the proof that their failures become tests."""
