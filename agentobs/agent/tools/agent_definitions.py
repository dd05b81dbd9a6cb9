"""Agents that an agent may start: what each of them is, and how far they may go."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentobs.agent.model.prompt import Rendered, SystemPrompt
from agentobs.errors import UsageError
from agentobs.records.canonical_json import Json

DEPTH_MAX = 3
"""How deep agents may start each other where nobody says otherwise. Our choice: who needs more, divides badly."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that another one may start. What it does not say is as in the options of who starts it."""

    name: str
    """What it is called: letters, digits, `_` and `-`, at most 64."""
    description: str = field(repr=False)
    """What it is good for; the model that may start it reads that."""
    system: str | list[Json] | SystemPrompt | Rendered | None = field(default=None, repr=False)
    """Its system prompt; nothing of its starter's is in it."""
    tools: tuple[str, ...] | None = None
    """The names of its tools, out of those of who starts it; None gives it all of them."""
    model: str | None = None
    """The model that it is; None: that of who starts it."""
    max_turns: int | None = None
    """Stop it after so many turns that used tools; None: as many as who starts it may take."""

    def __post_init__(self) -> None:
        """Refuse names that could not be told from other text, and tools that are no names.

        Raises:
            UsageError: it is one of these.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(
                f"an agent is named {self.name!r}",
                todo="Name it with letters, digits, _ and -, at most 64 of them",
            )
        if isinstance(self.tools, str):
            raise UsageError(
                f"the tools of the agent {self.name} are one text",
                todo=f'Give a tuple of names: ("{self.tools}",)',
            )


@dataclass(frozen=True, slots=True)
class Agents:
    """Agents that one tool starts."""

    known: tuple[Agent, ...]
    depth_max: int = DEPTH_MAX
    """How deep they may lie below the agent itself, from 1."""

    def __post_init__(self) -> None:
        """Refuse none at all, two of one name, and a depth at which none could be started.

        Raises:
            UsageError: it is one of these.
        """
        names = [agent.name for agent in self.known]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if not names:
            raise UsageError("there are no agents to start", todo="Give at least one")
        if doubled:
            raise UsageError(f"two agents are named {', '.join(doubled)}")
        if self.depth_max < 1:
            raise UsageError(f"a depth of {self.depth_max} for agents", todo="Allow at least 1")

    def named(self, name: str) -> Agent:
        """Return the agent of a name that is known."""
        return next(agent for agent in self.known if agent.name == name)
