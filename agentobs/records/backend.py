"""The values that backends receive: each fact as it was written to the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentobs.records.facts import Fact


@dataclass(frozen=True, slots=True)
class ExchangeContent:
    """The redacted content of one exchange. Backends receive it only if the session opted in."""

    question: bytes = field(repr=False)
    """The body of a request, or the input of a tool call as JSON."""
    answer: bytes = field(repr=False)
    """The body of a response as it arrived, or the result of a tool call as JSON."""


@dataclass(frozen=True, slots=True)
class WrittenFact:
    """A sanitized fact as it was written to the journal; every string in it is a label or an ID."""

    fact: Fact
    sequence: int
    """The number of the fact in its session, from 1."""
    content: ExchangeContent | None = None
    """The content of an attempt or a tool result, in a session that opted in; else None."""


Backend = Callable[[WrittenFact], None]
"""Receives each fact on the recorder's thread, so it must return quickly. It is removed if it raises an exception.

A backend may have these attributes:
- `close(seconds: float) -> bool` is called when the recorder is closed.
- `exports_spans = False` declares that it does not export spans to the destination of the SDK's own spans. Otherwise
  the SDK's spans are switched off, so that no call is reported twice.
- `destination` and `profile` are labels: where the backend sends telemetry, and in which convention. Sessions record
both.
"""
