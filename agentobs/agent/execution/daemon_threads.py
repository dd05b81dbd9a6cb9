"""Threads: plain functions, each alone in a daemon thread.

Not the pool of asyncio: there a function that never returns holds one of few places for ever, and the
interpreter waits for it at its end. Here whoever waits may give up; the thread is then left to itself,
and only so many may be left. A thread whose function has returned serves the next one.
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

T = TypeVar("T")

LEFT_MAX = 64
"""How many threads that were given up may be at work in this process. Our choice."""

IDLE_MAX = 16
"""How many threads wait for the next function. Our choice."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a thread, with the caller's context, and return or raise what it does.

    Cancelling the caller gives the thread up: it cannot be stopped.

    Raises:
        RuntimeError: so many threads that were given up never ended that no other may begin.
    """
    if _Work.left >= LEFT_MAX:
        raise RuntimeError(f"{_Work.left} calls that were given up are still at work")
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()
    here = _Work()

    def run() -> Callable[[], object]:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = context.run(work), None
        except BaseException as error:  # whatever it raised is raised where it is awaited
            outcome = None, error
        here.end()
        return lambda: loop.call_soon_threadsafe(_tell, ended, outcome)

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
    """One function at work in a thread."""

    left = 0
    """How many were given up and are still at work."""
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._has_ended = self._is_left = False

    def end(self) -> None:
        with self._lock:
            self._has_ended = True
            _Work.left -= self._is_left

    def give_up(self) -> None:
        with self._lock:
            self._is_left = not self._has_ended
            _Work.left += self._is_left


Run = Callable[[], Callable[[], object]]
"""Does the work, and returns what tells of its end."""

_idle: list[SimpleQueue[Run]] = []
"""Where threads wait for work; appending to and popping from a list is atomic."""


def _forget() -> None:
    """Begin anew in a forked process: the threads stayed behind in the parent."""
    _idle.clear()
    _Work.left, _Work._lock = 0, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _hand(run: Run) -> None:
    """Give work to a thread that waits for some, or else to a new one."""
    try:
        _idle.pop().put(run)
    except IndexError:
        inbox: SimpleQueue[Run] = SimpleQueue()
        inbox.put(run)
        threading.Thread(target=_serve, args=[inbox], name="agentobs-tool", daemon=True).start()


def _serve(inbox: SimpleQueue[Run]) -> None:
    is_waiting = True
    while is_waiting:
        tell = inbox.get()()
        is_waiting = len(_idle) < IDLE_MAX
        if is_waiting:
            _idle.append(inbox)  # before the end is told: the next call finds this thread
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            tell()
        del tell  # it holds the result, which may be large


def _tell(
    ended: asyncio.Future[tuple[T | None, BaseException | None]],
    outcome: tuple[T | None, BaseException | None],
) -> None:
    if not ended.done():
        ended.set_result(outcome)
