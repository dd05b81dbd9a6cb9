"""A scenario of the loop: an agent, its provider's responses, and external input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentobs.agent import Abort, Conversation, Event, Inbox, Tool
from agentobs.world import World
from tests.agent.provider import Reply as ProviderReply


@dataclass
class ExternalInput:
    """External input of a scenario while it is recorded; a replay has none."""

    person: Any = None
    inbox: Inbox | None = None
    abort: Abort | None = None
    on: Callable[[Event], None] = lambda event: None
    roots: Sequence[Path] = ()
    spent_today: Callable[[], Decimal] | None = None
    keep: Any = None
    live: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of `live_world`."""
    conversation: Conversation | None = None
    """The conversation of the agent, after the agent has started."""


@dataclass
class Scenario:
    """An agent, the responses of its provider, and the inputs that are recorded."""

    description: str
    """The behavior that the scenario shows, in one sentence."""
    replies: Sequence[ProviderReply]
    tools: Sequence[Tool] = ()
    replayed_tools: Sequence[Tool] | None = None
    """The tools of the replay, if they differ from the tools of the recording."""
    prompts: Sequence[str] = ("Hello",)
    options: dict[str, Any] = field(default_factory=dict)
    external_input: Callable[[Path], ExternalInput] = lambda folder: ExternalInput()
    """Returns the external input of the recording, which may use a separate folder."""
    start_conversation: Callable[[World], Awaitable[Conversation]] | None = None
    """Returns the conversation to continue; None starts a new conversation."""
