"""Isolation: each replayed test runs in its own forked process."""
