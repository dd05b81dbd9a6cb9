"""Definitions of the sub-agents that an agent may start, and their limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentobs.agent.model.prompt import Rendered, SystemPrompt
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json

DEPTH_MAX = 3
"""Default maximum depth of nested agents. Our choice: deeper nesting indicates a poor division of work."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """The definition of a sub-agent. If `tools`, `model` or `max_turns` is not set, the starter's option is used."""

    name: str
    """Its name: at most 64 letters, digits, `_` and `-`."""
    description: str = field(repr=False)
    """A description of its purpose, for the model that may start it."""
    system: str | list[Json] | SystemPrompt | Rendered | None = field(default=None, repr=False)
    """Its system prompt, independent of its starter's; None for no system prompt."""
    tools: tuple[str, ...] | None = None
    """Names of its tools, a subset of the starter's; None for all of them."""
    model: str | None = None
    """Its model; None for the starter's model."""
    max_turns: int | None = None
    """Maximum number of turns with tool calls; None for the starter's limit."""

    def __post_init__(self) -> None:
        """Validate the name and the tools.

        Raises:
            UsageError: the name is invalid, or the tools are not a list of names.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(
                f"invalid agent name: {self.name!r}",
                todo="Use at most 64 letters, digits, _ and -",
            )
        if isinstance(self.tools, str):
            raise UsageError(
                f"the tools of the agent {self.name} are a single string",
                todo=f'Pass a tuple of names: ("{self.tools}",)',
            )


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents that one tool can start."""

    known: tuple[AgentDefinition, ...]
    depth_max: int = DEPTH_MAX
    """Maximum depth of these agents below the main agent, 1 or more."""

    def __post_init__(self) -> None:
        """Validate the agents and the depth.

        Raises:
            UsageError: there are no agents, two agents have the same name, or the depth is below 1.
        """
        names = [agent.name for agent in self.known]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if not names:
            raise UsageError("there are no agents to start", todo="Pass at least one")
        if duplicates:
            raise UsageError(f"two agents are named {', '.join(duplicates)}")
        if self.depth_max < 1:
            raise UsageError(f"invalid depth_max: {self.depth_max}", todo="Pass 1 or more")

    def named(self, name: str) -> AgentDefinition:
        """Return the agent with this name, which must exist."""
        return next(agent for agent in self.known if agent.name == name)
