"""Importers: each importer converts files of another tool to segments, one segment per session."""
