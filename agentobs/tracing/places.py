"""Places: the current session, interaction, lane, turn and span of a caller.

The place is stored in a context variable, so tasks and `asyncio.to_thread` inherit it. Threads do not inherit a
context: a thread that is started while exactly one session is open belongs to that session. If the current span has
already ended, the current place is in the nearest enclosing span that is still open.
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
    """A span that was opened, and whether it has ended."""

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
        """Create the state of a span; `place` is the place inside it."""
        self.name = name
        self.place, self.span_id, self.trace_id, self.parent = place, span_id, trace_id, parent
        self.last_ns = last_ns
        """The time of the last known activity in the span, on the monotonic clock."""
        self.due_ns = last_ns
        """The time until which the span is expected to have no activity, on the same clock."""
        self.has_ended = False


class Frame:
    """A current place that was entered, with its span, and the frame that was current before."""

    __slots__ = ("is_block", "is_generators", "opened", "outer", "place")

    def __init__(
        self,
        place: Place,
        opened: Opened | None,
        outer: Frame | None,
        *,
        is_block: bool = False,
        is_generators: bool = False,
    ) -> None:
        """Create a frame; `outer` is the previous frame of the context."""
        self.place, self.opened, self.outer = place, opened, outer
        self.is_block = is_block
        """Whether the place was entered by the block of a span."""
        self.is_generators = is_generators
        """Whether a generator entered the place. After a `yield`, such a frame stays current while the consumer runs.
        """


_frame: ContextVar[Frame | None] = ContextVar("agentobs_place", default=None)


class State:
    """The open sessions of this process."""

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[Place, dict[int | None, weakref.ref[threading.Thread]]]] = {}
        """The place of each session, and the threads that were already running when it was opened, by thread ID."""
        self.openers: dict[str, int] = {}
        """The ID of the thread that opened each session."""


open_spans: dict[str, Opened] = {}
"""The open spans of this process by ID, oldest first. A span ends when it is removed, which is atomic."""


def place() -> Place | None:
    """Return the current place, or None outside a session."""
    frame = _frame.get()
    if frame is None:
        return _place_of_thread()
    opened = frame.opened
    if opened is None or not opened.has_ended:
        return frame.place
    enclosing = nearest(opened.parent)
    return replace(frame.place, span_id=enclosing.span_id if enclosing else None)


def opened_here() -> Opened | None:
    """Return the current span, even if it has ended; None if there is none, or it belongs to another process."""
    frame = _frame.get()
    return frame.opened if frame is not None else None


def nearest(opened: Opened | None) -> Opened | None:
    """Return a span, or the nearest enclosing span that has not ended; None if all have ended."""
    while opened is not None and opened.has_ended:
        opened = opened.parent
    return opened


def _place_of_thread() -> Place | None:
    """Return the place of a thread without a context: in the only open session, if the thread was started in it."""
    state = process.state(State)
    if len(state.sessions) == 1:
        for session_place, earlier_threads in list(state.sessions.values()):
            reference = earlier_threads.get(threading.get_ident())
            earlier = reference() if reference is not None else None
            # A new thread may have the ID of a thread that has ended.
            return session_place if earlier is None or not earlier.is_alive() else None
    return None


def session_opened(here: Place) -> None:
    """Register a session, so that threads that are started from now on belong to it."""
    state = process.state(State)
    earlier_threads = {thread.ident: weakref.ref(thread) for thread in threading.enumerate()}
    state.sessions[here.session_id] = here, earlier_threads
    state.openers[here.session_id] = threading.get_ident()


def session_closed(session_id: str) -> None:
    """Forget a session that has ended."""
    state = process.state(State)
    state.sessions.pop(session_id, None)
    state.openers.pop(session_id, None)


def is_opener() -> bool:
    """Return whether this thread opened the current session."""
    state = process.state(State)
    here = place()
    return here is not None and state.openers.get(here.session_id) == threading.get_ident()


@contextlib.contextmanager
def at(here: Place) -> Iterator[Place]:
    """Set the current place to `here` while the context is active.

    Do not use it around the `yield` of an async generator, because another context may close the generator.
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

    `is_generators` states whether a generator enters it.
    """
    outer = _frame.get()
    # Skip the frames of abandoned generators; otherwise each of them would keep the previous one alive.
    while outer is not None and outer.is_block and outer.opened and outer.opened.has_ended:
        outer = outer.outer
    frame = Frame(opened.place, opened, outer, is_block=True, is_generators=is_generators)
    _frame.set(frame)
    return frame


def leave(frame: Frame) -> None:
    """Return to the place before `enter` or `step_in`; does nothing in another context.

    If a generator closes its span while its consumer is inside another span, that span stays current. Tokens of the
    context variable cannot be used, because a generator may be closed in another context than it was started in.
    """
    inner = _frame.get()
    while inner is not None and inner is not frame:
        if frame.is_block and not inner.is_generators:
            return
        inner = inner.outer
    if inner is frame:
        _frame.set(frame.outer)


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it runs in the caller's session and span in a thread, an executor or another task.

        pool.submit(agentobs.carried(work), item)

    Sync and async functions are supported. The result may be called repeatedly and from several threads.
    """
    frame = _frame.get()
    if frame is None and (here := place()) is not None:
        frame = Frame(here, None, None)

    @contextlib.contextmanager
    def at_place() -> Iterator[None]:
        previous = _frame.get()
        _frame.set(frame)
        try:
            yield
        finally:
            _frame.set(previous)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with at_place():
                return await function(*args, **kwargs)

        return run_async  # type: ignore[return-value]  # a coroutine function with the same signature

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with at_place():
            return function(*args, **kwargs)

    return run
