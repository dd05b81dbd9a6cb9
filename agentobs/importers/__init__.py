"""Importers: each turns a foreign file into segments, one per session."""
