"""What makes other people's programs repeatable: callers, recorded functions, patched clock and chance."""
