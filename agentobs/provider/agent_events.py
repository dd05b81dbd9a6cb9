"""Neutral values for agents that the provider runs: what an HTTP exchange reveals about a session of such an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

AgentEventKind = Literal[
    "prompt", "request_start", "request_end", "call", "result", "idle", "end", "error", "other"
]
"""What an event means: `prompt`, a message of the user; `request_start` and `request_end`, a request to the model;
`call` and `result`, a tool call; `idle`, the agent waits; `end`, its session ended; `error`; `other`.
"""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One event of a session of an agent that the provider runs."""

    id: str
    type: str
    """The provider's name of the event."""
    kind: AgentEventKind
    at_ns: int | None
    """When it happened by the provider's clock, in nanoseconds since 1970; None if the event has no time yet."""
    thread_id: str | None = None
    """The thread of a sub-agent to which the event belongs; None for the thread of the exchange."""
    refers_to: str | None = None
    """For the end of a request, the ID of its start; for a result, the ID of its call."""
    usage: Mapping[str, Any] | None = field(default=None, repr=False)
    """The tokens of a request, which only the dialect can read."""
    is_evaluation: bool = False
    """Whether a request evaluated the outcome, so that it is not a turn."""
    is_error: bool = False
    name: str = ""
    """The name of the tool, for a call."""
    server: str | None = None
    """The MCP server that has the tool."""
    input: Any = field(default=None, repr=False)
    input_bytes: int = 0
    runs_on: Literal["provider", "client"] = "provider"
    """Where the tool of a call ran; for a result, who sent it."""
    result_bytes: int = 0
    items: int | None = None
    """The number of parts of a result."""
    word: str | None = None
    """Why the agent stopped, the type of an error, or a verdict, in the provider's terms."""
    ending: tuple[str, bool] | None = None
    """How an interaction ended, and whether this is an error, if the agent waits for a new message; None otherwise."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further IDs and terms."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further numbers."""


@dataclass(frozen=True, slots=True)
class ManagedTraffic:
    """The information in an exchange about sessions of agents that the provider runs."""

    session_id: str | None = None
    """The provider's ID of the session whose events the response contains."""
    thread_id: str | None = None
    """The provider's ID of the thread; None for all threads that the session shows."""
    events: Sequence[AgentEvent] = ()
    """The events, in the order in which they happened."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The models of sessions and threads, by ID."""
    primary_threads: frozenset[str] = frozenset()
    """Threads that are not of sub-agents."""


class AgentStream(Protocol):
    """Reads the events of a stream while it arrives; each event is returned once."""

    @property
    def size(self) -> int:
        """The number of bytes of the body that were read."""

    def read(self, data: bytes) -> ManagedTraffic:
        """Return the events whose time is known after the next bytes of the body."""

    def end(self) -> ManagedTraffic:
        """Return the events that are left when the stream has ended."""
