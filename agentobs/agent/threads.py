"""Threads: plain functions, each in a daemon thread of its own.

Not the pool of asyncio: there a function that never returns holds one of few places for ever, and the
interpreter waits for it at its end. Here whoever waits may give up; the thread is then left to itself,
and only so many may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LEFT_MAX = 64
"""How many threads that were given up may be at work in this process. Our choice."""


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

    def run() -> None:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = context.run(work), None
        except BaseException as error:
            outcome = None, error
        here.end()
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_tell, ended, outcome)

    threading.Thread(target=run, name="agentobs-tool", daemon=True).start()
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


def _tell(
    ended: asyncio.Future[tuple[T | None, BaseException | None]],
    outcome: tuple[T | None, BaseException | None],
) -> None:
    if not ended.done():
        ended.set_result(outcome)
