"""Live execution that a replay skips: tool functions, hook programs, approvals and the classifier."""
