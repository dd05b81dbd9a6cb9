"""Panels: a figure with its answer in words, and the page templates."""
