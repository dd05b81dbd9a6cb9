"""Content for display: visible text, messages, a whole session."""
