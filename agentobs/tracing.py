"""Where we are: the current place of a run, and the spans opened there.

The place travels by context variable, so that tasks and `asyncio.to_thread` inherit it. A thread has
no context of its own: one that was started while exactly one session is open belongs to that session.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace

from agentobs import world
from agentobs.records.exchanges import Place
from agentobs.records.facts import SpanEnd, SpanStart
from agentobs.records.labels import Label, unchecked
from agentobs.sink import sink

_place: ContextVar[Place | None] = ContextVar("agentobs_place", default=None)
_open: dict[str, tuple[Place, frozenset[int | None]]] = {}
"""The open sessions, each with the threads that ran already when it was opened."""


def place() -> Place | None:
    """Return where the caller is, or None outside every session."""
    here = _place.get()
    if here is None and len(_open) == 1:
        for only, before in list(_open.values()):
            return None if threading.get_ident() in before else only
    return here


def session_opened(here: Place) -> None:
    """Let threads that are started from now on be here, as long as no other session is open."""
    _open[here.session_id] = here, frozenset(thread.ident for thread in threading.enumerate())


def session_closed(session_id: str) -> None:
    """Forget a session that ended."""
    _open.pop(session_id, None)


@contextlib.contextmanager
def at(here: Place) -> Iterator[Place]:
    """Be at `here` for as long as the context is open.

    Never held across the `yield` of an async generator: there the context of the closing task differs.
    """
    token = _place.set(here)
    try:
        yield here
    finally:
        _place.reset(token)


def enter(here: Place) -> object:
    """Be at `here` until `leave` is called with the returned token."""
    return _place.set(here)


def leave(token: object) -> None:
    """Go back to where `enter` was called; harmless from another context."""
    with contextlib.suppress(ValueError):
        _place.reset(token)  # type: ignore[arg-type]  # an opaque token to callers


def open_span(
    name: str,
    here: Place,
    *,
    label: Label | None = None,
    now: int | None = None,
    linked_span_id: str | None = None,
) -> Place:
    """Open a span under the one at `here` and return the place inside it.

    `linked_span_id` is the span of another trace that started it.
    """
    span_id = world.new_id()[16:]
    sink.emit(
        SpanStart(
            session_id=here.session_id,
            trace_id=here.interaction_id or here.session_id,
            span_id=span_id,
            parent_span_id=here.span_id,
            lane=unchecked(here.lane),
            name=Label(name),
            label=label,
            started_ns=world.now() if now is None else now,
            linked_span_id=linked_span_id,
        )
    )
    return replace(here, span_id=span_id)


def close_span(
    inside: Place, error: BaseException | None = None, *, cancelled: bool = False
) -> None:
    """Close the span at `inside`; with an error its class is kept, never its text."""
    if inside.span_id is None:
        return
    sink.emit(
        SpanEnd(
            session_id=inside.session_id,
            span_id=inside.span_id,
            ended_ns=world.now(),
            status="cancelled" if cancelled else "error" if error else "ok",
            error_type=unchecked(type(error).__name__) if error else None,
        )
    )
