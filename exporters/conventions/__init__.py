"""Spans and attributes in the semantic conventions of each backend."""
