"""The seam between agentobs and the shapes of providers."""
