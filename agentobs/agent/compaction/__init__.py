"""Compaction: shortening a conversation with the model's help, and recovery when a request is too long."""
