"""Pure rules for LLM requests: prompt, prompt cache, thinking, output limits, error classes, retries."""
