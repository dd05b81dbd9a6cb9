"""LLM requests: a single attempt, a request with its retries, the request of a turn, and maintenance requests."""
