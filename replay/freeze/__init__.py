"""Freezing: the conversion of a recorded session to a fixture and a pytest file."""
