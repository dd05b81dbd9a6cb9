"""Panels (figures with a summary in words), and the page templates."""
