"""The path from the tool calls of one response to their results."""
