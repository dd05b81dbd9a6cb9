"""Freezing: a recorded session becomes a fixture and a pytest file."""
