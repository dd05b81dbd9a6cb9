"""The values handed to backends: each fact as written to the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentobs.records.facts import Fact


@dataclass(frozen=True, slots=True)
class Said:
    """The redacted content of one exchange; handed on only if the session opted in."""

    question: bytes = field(repr=False)
    """The body of a request, or the input of a tool call as JSON."""
    answer: bytes = field(repr=False)
    """The body of a response as it arrived, or the result of a tool call as JSON."""


@dataclass(frozen=True, slots=True)
class Told:
    """A sanitized fact as written to the journal; every string in it is a label or an ID."""

    fact: Fact
    sequence: int
    """Its number within its session, from 1."""
    said: Said | None = None
    """The content of an attempt or a tool result, in a session that opted in; else None."""


Backend = Callable[[Told], None]
"""Takes one fact, quickly, on the recorder's thread; it is removed if it raises. If it has a method `close(seconds:
float) -> bool`, it is closed with the recorder. `exports_spans = False` says that it exports no spans to the
destination of the SDK's own spans; otherwise those are switched off, so that no call is reported twice. If it sends
telemetry away, `destination` and `profile`, both labels, say where to and in which convention; sessions record both.
"""
