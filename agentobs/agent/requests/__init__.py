"""Requests to the model: one attempt, one LLM request with its retries, the request of a turn."""
