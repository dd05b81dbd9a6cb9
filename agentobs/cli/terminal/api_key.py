"""The provider's API key in the environment."""

from __future__ import annotations

from agentobs import world

VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
"""The variables from which the SDK reads a key or a token."""


def has_api_key() -> bool:
    """Return whether the environment contains a key or a token for the provider."""
    return any(world.environ(name) for name in VARIABLES)
