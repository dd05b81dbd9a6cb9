"""The current place of the caller in a run.

The place is held in a context variable, so tasks and `asyncio.to_thread` inherit it. Threads have no inherited context:
a thread started while exactly one session is open belongs to that session. If the current span has ended in the
meantime, the current place is in the nearest enclosing span that has not.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from agentobs.records.exchanges import Place
from agentobs.runtime import process

P = ParamSpec("P")
R = TypeVar("R")


class Opened:
    """The state of an opened span, and whether it has ended."""

    __slots__ = (
        "due_ns", "has_ended", "last_ns", "name", "parent", "place", "span_id", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        place: Place,
        span_id: str,
        trace_id: str,
        parent: Opened | None,
        last_ns: int,
        name: str = "",
    ) -> None:
        """Register a span; `place` is the place inside it."""
        self.name = name
        self.place, self.span_id, self.trace_id, self.parent = place, span_id, trace_id, parent
        self.last_ns = last_ns
        """Time of the last known activity in it, by the monotonic clock."""
        self.due_ns = last_ns
        """Until when it may be silent, as its opener expects, by the same clock."""
        self.has_ended = False


class Frame:
    """The current place of a context, and the span there while it is open."""

    __slots__ = ("around", "is_block", "is_generators", "opened", "place")

    def __init__(
        self,
        place: Place,
        opened: Opened | None,
        around: Frame | None,
        *,
        is_block: bool = False,
        is_generators: bool = False,
    ) -> None:
        """Enter a place; `around` is the previous frame of the context."""
        self.place, self.opened, self.around = place, opened, around
        self.is_block = is_block
        """Whether it is the block of a span."""
        self.is_generators = is_generators
        """Whether a generator opened it. Frames that a generator leaves at a `yield` are not the consumer's."""


_frame: ContextVar[Frame | None] = ContextVar("agentobs_place", default=None)


class State:
    """The open sessions of this process."""

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[Place, dict[int | None, weakref.ref[threading.Thread]]]] = {}
        """Each with the threads that were already running when it was opened, by their IDs."""
        self.openers: dict[str, int] = {}
        """The ID of the thread that opened each session."""


open_spans: dict[str, Opened] = {}
"""The spans of this process that have not ended, by ID, oldest first. Removing a span ends it, atomically."""


def place() -> Place | None:
    """Return the current place, or None outside a session."""
    frame = _frame.get()
    if frame is None:
        return _of_thread()
    opened = frame.opened
    if opened is None or not opened.has_ended:
        return frame.place
    around = nearest(opened.parent)
    return replace(frame.place, span_id=around.span_id if around else None)


def opened_here() -> Opened | None:
    """Return the current span, ended or not; None if there is none, or it belongs to another process."""
    frame = _frame.get()
    return frame.opened if frame is not None else None


def nearest(opened: Opened | None) -> Opened | None:
    """Return a span, or the nearest enclosing span that has not ended."""
    while opened is not None and opened.has_ended:
        opened = opened.parent
    return opened


def _of_thread() -> Place | None:
    state = process.part(State)
    if len(state.sessions) == 1:
        for only, before in list(state.sessions.values()):
            known = before.get(threading.get_ident())
            earlier = known() if known is not None else None
            # The ID of an ended thread may be reused by a new one.
            return only if earlier is None or not earlier.is_alive() else None
    return None


def session_opened(here: Place) -> None:
    """Assign threads started from now on to this place, while no other session is open."""
    state = process.part(State)
    before = {thread.ident: weakref.ref(thread) for thread in threading.enumerate()}
    state.sessions[here.session_id] = here, before
    state.openers[here.session_id] = threading.get_ident()


def session_closed(session_id: str) -> None:
    """Forget a session that ended."""
    state = process.part(State)
    state.sessions.pop(session_id, None)
    state.openers.pop(session_id, None)


def is_opener() -> bool:
    """Return whether this thread opened the current session."""
    state = process.part(State)
    here = place()
    return here is not None and state.openers.get(here.session_id) == threading.get_ident()


@contextlib.contextmanager
def at(here: Place) -> Iterator[Place]:
    """Set the current place to `here` while the context is open.

    Never hold it across the `yield` of an async generator, because the closing task may have another context.
    """
    frame = enter(here)
    try:
        yield here
    finally:
        leave(frame)


def enter(here: Place) -> Frame:
    """Set the current place to `here` until `leave` is called with the returned frame."""
    frame = Frame(here, open_spans.get(here.span_id or ""), _frame.get())
    _frame.set(frame)
    return frame


def step_in(opened: Opened, *, is_generators: bool) -> Frame:
    """Enter a span until `leave` is called with the returned frame, or the span has ended.

    `is_generators` tells whether a generator opens it.
    """
    around = _frame.get()
    # Skip frames left by abandoned generators; otherwise each would keep the previous one alive.
    while around is not None and around.is_block and around.opened and around.opened.has_ended:
        around = around.around
    frame = Frame(opened.place, opened, around, is_block=True, is_generators=is_generators)
    _frame.set(frame)
    return frame


def leave(frame: Frame) -> None:
    """Return to the place before `enter` or `step_in`; does nothing in another context.

    If a generator closes its span while its consumer is in a span of its own, the consumer's span
    stays. No token of the context variable is kept, because a generator may be closed in another
    context than it was opened in.
    """
    above = _frame.get()
    while above is not None and above is not frame:
        if frame.is_block and not above.is_generators:
            return
        above = above.around
    if above is frame:
        _frame.set(frame.around)


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs at the caller's current place: in a thread, an executor, or another task.

      pool.submit(agentobs.carried(work), item)

    Works with sync and async functions. The result may be called repeatedly and from several threads.
    """
    frame = _frame.get()
    if frame is None and (here := place()) is not None:
        frame = Frame(here, None, None)

    @contextlib.contextmanager
    def there() -> Iterator[None]:
        before = _frame.get()
        _frame.set(frame)
        try:
            yield
        finally:
            _frame.set(before)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with there():
                return await function(*args, **kwargs)

        return run_async  # type: ignore[return-value]  # a coroutine function like the one carried

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with there():
            return function(*args, **kwargs)

    return run
