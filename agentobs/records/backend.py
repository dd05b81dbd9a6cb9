"""What is handed on: a fact as it was written, to whoever wants to hear of it beside the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentobs.records.facts import Fact


@dataclass(frozen=True, slots=True)
class Said:
    """What was said in one exchange, without the secrets; handed on only where the session opted in."""

    question: bytes = field(repr=False)
    """The body of a request, or the input of a tool call as JSON."""
    answer: bytes = field(repr=False)
    """The body of a response as it arrived, or the result of a tool call as JSON."""


@dataclass(frozen=True, slots=True)
class Told:
    """One fact: its strings are labels and ids of ours, whoever emitted it."""

    fact: Fact
    sequence: int
    """Its number within its session, from 1."""
    said: Said | None = None
    """What was said, with an attempt or a tool result of a session that opted in; else None."""


Backend = Callable[[Told], None]
"""Takes one fact, on the recorder's thread, quickly; whatever it raises takes it off the list. One that has a method
`close(seconds: float) -> bool` is closed with the recorder. One that exports no spans to where the SDK's own go says so
with `exports_spans = False`: those are switched off otherwise, so that no call is seen twice. One that sends telemetry
away says where to with `destination` and in which `profile`, both labels: sessions note it."""
