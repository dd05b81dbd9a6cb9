"""What a scenario of the loop is: an agent, what its provider answers, and what comes from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentobs.agent import Abort, Conversation, Event, Inbox, Tool
from agentobs.world import World
from tests.agent.provider import Reply as Sent


@dataclass
class Outside:
    """What comes from outside while a scenario is recorded; in a replay nothing does."""

    person: Any = None
    inbox: Inbox | None = None
    abort: Abort | None = None
    on: Callable[[Event], None] = lambda event: None
    roots: Sequence[Path] = ()
    spent_today: Callable[[], Decimal] | None = None
    keep: Any = None
    live: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `live_world`."""


@dataclass
class Scenario:
    """One scenario."""

    shows: str
    """What it shows, in a sentence."""
    replies: Sequence[Sent]
    tools: Sequence[Tool] = ()
    replayed_tools: Sequence[Tool] | None = None
    """The tools of the replay, where they are others than when it was recorded."""
    prompts: Sequence[str] = ("Hello",)
    options: dict[str, Any] = field(default_factory=dict)
    outside: Callable[[Path], Outside] = lambda folder: Outside()
    """What comes from outside when it is recorded, in a folder of its own."""
    begin: Callable[[World], Awaitable[Conversation]] | None = None
    """Gives the conversation that it goes on with; None begins a new one."""
