"""The values that backends receive: each fact as it was written to the journal."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentobs.errors import UsageError
from agentobs.records.event_catalog import ROW_KINDS, TABLE_KINDS
from agentobs.records.facts import TABLES, Event, Fact, Prefix, SpanEnd, SpanStart, UsageRow, Zones


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
"""Receives facts on the recorder's thread, so it must return quickly. It is removed if it raises an exception.

A backend has the attribute `kinds`, the list of the kinds of facts that it receives; see `receiving`. It may also have
these attributes:
- `close(seconds: float) -> bool` is called when the recorder is closed.
- `exports_spans = False` declares that it does not export spans to the destination of the SDK's own spans. Otherwise
  the SDK's spans are switched off, so that no call is reported twice.
- `destination` and `profile` are labels: where the backend sends telemetry, and in which convention. Sessions record
both.
"""

_OTHER_KINDS: dict[type, str] = {
    UsageRow: "usage",
    Prefix: "prefix",
    Zones: "zones",
    SpanStart: "span",
    SpanEnd: "span_end",
}
"""The kinds of facts that are not separate events."""

_KIND_OF = {kind.fact: name for name, kind in TABLE_KINDS.items() if kind.fact is not SpanEnd}
_KIND_OF |= {fact: table for fact, table in TABLES.items() if fact not in _KIND_OF}
_KIND_OF |= _OTHER_KINDS

OWN_KINDS = "*.*"
"""The pattern of the kinds of custom events, whose names contain a dot."""

ALL_KINDS: tuple[str, ...] = (
    *(name for name in TABLE_KINDS if TABLE_KINDS[name].fact is not SpanEnd),
    *_OTHER_KINDS.values(),
    *(name for name, kind in ROW_KINDS.items() if not kind.is_reserved),
    OWN_KINDS,
)
"""Every kind of fact by its name, and custom events. A fact that is not in this list is passed to no backend."""


def backend_kind(fact: Fact) -> str:
    """Return the kind of a fact as backends name it: the kind of an event, or else the name of the fact."""
    return str(fact.kind) if isinstance(fact, Event) else _KIND_OF[type(fact)]


def checked_kinds(kinds: Iterable[str], where: str) -> tuple[str, ...]:
    """Return a list of kinds as a tuple.

    Args:
        kinds: names of kinds of facts (docs/exporting.md), or patterns with `*`, such as `billing.*`.
        where: the backend, for the error.

    Raises:
        UsageError: the list is empty or is one text, or a name is not a kind.
    """
    found = () if isinstance(kinds, str) else tuple(kinds)
    unknown = [each for each in found if not _is_kind(each)]
    if not found or unknown:
        raise UsageError(
            f"unknown kinds of facts: {', '.join(map(repr, unknown))[:200]}"
            if unknown
            else "no kinds of facts are given",
            where=where,
            todo=f"Pass a list with one or more of {', '.join(ALL_KINDS)}",
        )
    return found


def _is_kind(name: object) -> bool:
    if not isinstance(name, str):
        return False
    known = {*_KIND_OF.values(), *ROW_KINDS}
    return name in known or "." in name or any(fnmatch.fnmatchcase(each, name) for each in known)


class Receiving:
    """A backend that passes only some kinds of facts to another one; see `receiving`."""

    def __init__(self, kinds: tuple[str, ...], backend: Backend) -> None:
        """Pass facts of these kinds to `backend`."""
        self.kinds = kinds
        """The kinds of facts that the backend receives."""
        self._backend = backend

    def __call__(self, written: WrittenFact) -> None:
        """Receive one fact."""
        self._backend(written)

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the backend itself, such as `close`."""
        if name == "_backend":  # while the object is copied
            raise AttributeError(name)
        return getattr(self._backend, name)


def receiving(kinds: Sequence[str], backend: Backend) -> Backend:
    """Return a backend that receives only some kinds of facts.

    Args:
        kinds: names of kinds of facts, which docs/exporting.md lists, or patterns with `*`: `billing.*` are the custom
            events whose name starts with `billing.`, and `*` is everything.
        backend: a function or an object that receives facts. If it has its own list of kinds, this list replaces that
            list.

    Raises:
        UsageError: the list is empty, or a name is not a kind.
    """
    return Receiving(checked_kinds(kinds, "receiving"), backend)


def kinds_of(backend: Backend) -> tuple[str, ...]:
    """Return the kinds of facts that a backend receives.

    Raises:
        UsageError: the backend does not state them, or states an unknown kind.
    """
    name = getattr(backend, "__qualname__", type(backend).__qualname__)
    kinds = getattr(backend, "kinds", None)
    if kinds is None:
        raise UsageError(
            "a backend does not state which kinds of facts it receives",
            where=f"backends: {name}",
            todo="Pass agentobs.receiving([...], backend), with kinds from docs/exporting.md, such as "
            "['session', 'session_end', 'attempt', 'usage']",
        )
    return checked_kinds(kinds, f"backends: {name}")


def receives(kinds: Sequence[str], kind: str) -> bool:
    """Return whether a list of kinds names a kind."""
    return any(kind == each or fnmatch.fnmatchcase(kind, each) for each in kinds)
