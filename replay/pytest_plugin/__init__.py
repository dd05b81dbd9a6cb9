"""Modules that the pytest plugin imports on demand; the entry point is `agentobs.pytest_plugin`."""
