"""Compaction of a conversation with the model's help, and recovery if a request is too long."""
