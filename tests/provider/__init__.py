"""The boundary between agentobs and the API shapes of providers."""
