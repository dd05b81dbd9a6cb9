"""A scenario of the loop: an agent, its provider's responses, and external input."""

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
    """External input while a scenario is recorded; a replay has none."""

    person: Any = None
    inbox: Inbox | None = None
    abort: Abort | None = None
    on: Callable[[Event], None] = lambda event: None
    roots: Sequence[Path] = ()
    spent_today: Callable[[], Decimal] | None = None
    keep: Any = None
    live: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of `live_world`."""


@dataclass
class Scenario:
    """One scenario."""

    shows: str
    """What it shows, in a sentence."""
    replies: Sequence[Sent]
    tools: Sequence[Tool] = ()
    replayed_tools: Sequence[Tool] | None = None
    """The tools of the replay, if they differ from the recording's."""
    prompts: Sequence[str] = ("Hello",)
    options: dict[str, Any] = field(default_factory=dict)
    outside: Callable[[Path], Outside] = lambda folder: Outside()
    """External input during recording, in a separate folder."""
    begin: Callable[[World], Awaitable[Conversation]] | None = None
    """Returns the conversation to continue; None starts a new one."""
