"""Freezing: converts a recorded session to a fixture and a pytest file."""
