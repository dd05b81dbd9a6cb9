"""Content as people read it: visible text, messages, a whole session."""
