"""Places: where the caller is in a run.

The place travels by context variable, so that tasks and `asyncio.to_thread` inherit it. A thread has
no context of its own: one that was started while exactly one session is open belongs to that session.
Where the span that one is in has ended meanwhile, one is in the nearest one around it that has not.
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

P = ParamSpec("P")
R = TypeVar("R")


class Opened:
    """A span that was opened: what is known of it while it is open, and that it has ended."""

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
        """Note a span; `place` is the one inside of it."""
        self.name = name
        self.place, self.span_id, self.trace_id, self.parent = place, span_id, trace_id, parent
        self.last_ns = last_ns
        """When something was last seen to happen in it, by the monotonic clock."""
        self.due_ns = last_ns
        """Until when it may be silent, as whoever opened it expects, by the same clock."""
        self.has_ended = False


class Frame:
    """Where a context is: a place, and the span there as long as it is open."""

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
        """Stand at a place, `around` which the context stood before."""
        self.place, self.opened, self.around = place, opened, around
        self.is_block = is_block
        """Whether it is the block of a span."""
        self.is_generators = is_generators
        """Whether a generator opened that: what it leaves behind at a `yield`, its consumer has not asked for."""


_frame: ContextVar[Frame | None] = ContextVar("agentobs_place", default=None)
_sessions: dict[str, tuple[Place, dict[int | None, weakref.ref[threading.Thread]]]] = {}
"""The open sessions, each with the threads that ran already when it was opened, by their numbers."""
_openers: dict[str, int] = {}
"""The number of the thread that opened each of them."""
open_spans: dict[str, Opened] = {}
"""The spans of this process that have not ended, by id, oldest first. Whoever takes one out ends it: that is atomic."""


def place() -> Place | None:
    """Return where the caller is, or None outside every session."""
    frame = _frame.get()
    if frame is None:
        return _of_thread()
    opened = frame.opened
    if opened is None or not opened.has_ended:
        return frame.place
    around = nearest(opened.parent)
    return replace(frame.place, span_id=around.span_id if around else None)


def opened_here() -> Opened | None:
    """Return the span that the caller is in, ended or not; None where there is none, or it is not of this process."""
    frame = _frame.get()
    return frame.opened if frame is not None else None


def nearest(opened: Opened | None) -> Opened | None:
    """Return a span, or the nearest one around it, that has not ended."""
    while opened is not None and opened.has_ended:
        opened = opened.parent
    return opened


def _of_thread() -> Place | None:
    if len(_sessions) == 1:
        for only, before in list(_sessions.values()):
            known = before.get(threading.get_ident())
            earlier = known() if known is not None else None
            # The number of a thread that has ended is given to a new one.
            return only if earlier is None or not earlier.is_alive() else None
    return None


def session_opened(here: Place) -> None:
    """Let threads that are started from now on be here, as long as no other session is open."""
    before = {thread.ident: weakref.ref(thread) for thread in threading.enumerate()}
    _sessions[here.session_id] = here, before
    _openers[here.session_id] = threading.get_ident()


def session_closed(session_id: str) -> None:
    """Forget a session that ended."""
    _sessions.pop(session_id, None)
    _openers.pop(session_id, None)


def is_opener() -> bool:
    """Return whether this is the thread that opened the session which the caller is in."""
    here = place()
    return here is not None and _openers.get(here.session_id) == threading.get_ident()


@contextlib.contextmanager
def at(here: Place) -> Iterator[Place]:
    """Be at `here` for as long as the context is open.

    Never held across the `yield` of an async generator: there the context of the closing task differs.
    """
    frame = enter(here)
    try:
        yield here
    finally:
        leave(frame)


def enter(here: Place) -> Frame:
    """Be at `here` until `leave` is called with what this returns."""
    frame = Frame(here, open_spans.get(here.span_id or ""), _frame.get())
    _frame.set(frame)
    return frame


def step_in(opened: Opened, *, is_generators: bool) -> Frame:
    """Be in a span until `leave` is called with what this returns, or the span has ended.

    `is_generators` says that a generator opens it.
    """
    around = _frame.get()
    # What a generator that was abandoned had left here: kept, each would keep the one before it.
    while around is not None and around.is_block and around.opened and around.opened.has_ended:
        around = around.around
    frame = Frame(opened.place, opened, around, is_block=True, is_generators=is_generators)
    _frame.set(frame)
    return frame


def leave(frame: Frame) -> None:
    """Go back to where `enter` or `step_in` was called; in another context do nothing.

    Where a generator closes its span and its consumer is in one of its own meanwhile, that one stays. No token of
    the context variable is kept: a generator may be closed in another context than it was opened in.
    """
    above = _frame.get()
    while above is not None and above is not frame:
        if frame.is_block and not above.is_generators:
            return
        above = above.around
    if above is frame:
        _frame.set(frame.around)


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs where the caller of this is: in a thread, an executor, another task.

        pool.submit(agentobs.carried(work), item)

    Sync and async; it may be called often, and at the same time in several threads.
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
