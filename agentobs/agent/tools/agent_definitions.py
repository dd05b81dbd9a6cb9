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
class Agent:
    """A sub-agent that can be started. Fields that are not set use the starter's options."""

    name: str
    """Its name: letters, digits, `_` and `-`, at most 64."""
    description: str = field(repr=False)
    """What it is good for, described for the model that may start it."""
    system: str | list[Json] | SystemPrompt | Rendered | None = field(default=None, repr=False)
    """Its system prompt, independent of the starter's."""
    tools: tuple[str, ...] | None = None
    """Names of its tools, a subset of the starter's; None for all of them."""
    model: str | None = None
    """Its model; None for the starter's model."""
    max_turns: int | None = None
    """Stop it after this many turns that used tools; None for the starter's limit."""

    def __post_init__(self) -> None:
        """Validate the name and the tools.

        Raises:
            UsageError: the name is invalid, or the tools are not a list of names.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(
                f"an agent is named {self.name!r}",
                todo="Name it with letters, digits, _ and -, at most 64 of them",
            )
        if isinstance(self.tools, str):
            raise UsageError(
                f"the tools of the agent {self.name} are a single string",
                todo=f'Pass a tuple of names: ("{self.tools}",)',
            )


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents that one tool starts."""

    known: tuple[Agent, ...]
    depth_max: int = DEPTH_MAX
    """Maximum depth below the main agent, from 1."""

    def __post_init__(self) -> None:
        """Refuse an empty list, duplicate names, and a depth below 1.

        Raises:
            UsageError: one of these was found.
        """
        names = [agent.name for agent in self.known]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if not names:
            raise UsageError("there are no agents to start", todo="Pass at least one")
        if doubled:
            raise UsageError(f"two agents are named {', '.join(doubled)}")
        if self.depth_max < 1:
            raise UsageError(f"a depth of {self.depth_max} for agents", todo="Allow at least 1")

    def named(self, name: str) -> Agent:
        """Return the agent with a known name."""
        return next(agent for agent in self.known if agent.name == name)
