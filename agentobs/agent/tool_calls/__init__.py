"""From the tool calls of one response to their results: decisions, execution and reports."""
