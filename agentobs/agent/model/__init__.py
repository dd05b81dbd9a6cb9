"""Pure rules for requests to the model: prompt, prompt cache, thinking, output limits, error classes, retries."""
