"""The git repository in which a session runs."""
