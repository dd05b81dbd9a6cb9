"""Execution: what a replay does not run, such as tool functions, hook programs, approvals and the classifier."""
