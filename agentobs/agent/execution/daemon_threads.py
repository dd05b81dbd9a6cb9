"""Run each sync function alone in a daemon thread.

This is not asyncio's pool, in which a function that never returns occupies one of a few threads
forever and blocks the interpreter's exit. Here the caller may give up; the thread is abandoned, and
the number of abandoned threads is limited. A thread whose function has returned is reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from agentobs.runtime import process

T = TypeVar("T")

LEFT_MAX = 64
"""Maximum number of abandoned threads that are still running in this process. Our choice."""

IDLE_MAX = 16
"""Maximum number of idle threads. Our choice."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a thread, with the caller's context, and return its result or raise its
    exception.

    Cancelling the caller abandons the thread, because it cannot be stopped.

    Raises:
        RuntimeError: too many abandoned threads are still running.
    """
    left = process.part(State).left
    if left >= LEFT_MAX:
        raise RuntimeError(f"{left} abandoned calls are still running")
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()
    here = _Work()

    def run() -> Callable[[], object]:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = context.run(work), None
        except BaseException as error:  # any exception is raised where it is awaited
            outcome = None, error
        here.end()
        return lambda: loop.call_soon_threadsafe(_set_outcome, ended, outcome)

    _hand(run)
    try:
        value, error = await ended
    except BaseException:
        here.give_up()
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error it is what the function returned


class _Work:
    """One function running in a thread."""

    def __init__(self) -> None:
        self._has_ended = self._is_left = False

    def end(self) -> None:
        state = process.part(State)
        with state.lock:
            self._has_ended = True
            state.left -= self._is_left

    def give_up(self) -> None:
        state = process.part(State)
        with state.lock:
            self._is_left = not self._has_ended
            state.left += self._is_left


Run = Callable[[], Callable[[], object]]
"""Runs the function, and returns a callable that reports its end."""


class State:
    """The threads of this process that run tools, or wait for work."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start without threads, as in a forked process: they stayed in the parent."""
        self.idle: list[SimpleQueue[Run]] = []
        """Queues of idle threads; appending to and popping from a list is atomic."""
        self.left = 0
        """Number of abandoned functions that are still running."""
        self.lock = threading.Lock()


def _forget() -> None:
    """Reset the state in a forked process, because the threads stayed in the parent."""
    process.part(State).begin()


os.register_at_fork(after_in_child=_forget)


def _hand(run: Run) -> None:
    """Pass work to an idle thread, or else to a new one."""
    state = process.part(State)
    try:
        state.idle.pop().put(run)
    except IndexError:
        inbox: SimpleQueue[Run] = SimpleQueue()
        inbox.put(run)
        threading.Thread(target=_serve, args=[inbox], name="agentobs-tool", daemon=True).start()


def _serve(inbox: SimpleQueue[Run]) -> None:
    state = process.part(State)
    is_waiting = True
    while is_waiting:
        tell = inbox.get()()
        is_waiting = len(state.idle) < IDLE_MAX
        if is_waiting:
            # Before reporting the end, so that the next call finds this thread.
            state.idle.append(inbox)
        with contextlib.suppress(RuntimeError):  # the loop was closed, nothing waits
            tell()
        del tell  # it references the result, which may be large


def _set_outcome(
    ended: asyncio.Future[tuple[T | None, BaseException | None]],
    outcome: tuple[T | None, BaseException | None],
) -> None:
    if not ended.done():
        ended.set_result(outcome)
