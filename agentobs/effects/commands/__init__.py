"""Observed commands: shims in PATH, the socket that receives their reports, and the records of both."""
