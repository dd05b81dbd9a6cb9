"""Importers: each converts files of another tool into segments, one per session."""
