"""Comparison of two values: alignment, normalizers, placeholders of secrets, kinds of differences."""
