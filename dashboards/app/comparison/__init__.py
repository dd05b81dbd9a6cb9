"""The comparison of two sessions: its page, and the texts of aligned steps."""
