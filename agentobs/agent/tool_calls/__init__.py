"""Tool calls: from the calls of one response to their results."""
