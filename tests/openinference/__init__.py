"""Comparison of the profile `openinference` with `openinference-instrumentation-anthropic`."""
