"""Exporters: what was recorded, in the languages of other tools."""
