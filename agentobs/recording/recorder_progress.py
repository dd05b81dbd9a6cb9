"""Progress: how much of its input the recorder has processed, and waiting for it.

A thread can wait, and a task can wait without blocking its event loop. No wait is longer than requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from agentobs import world

STEP_SECONDS = 0.05
"""How often a wait checks whether it can still succeed."""

_Waiting = tuple[int, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Progress:
    """Counts of records: accepted, processed, and durable."""

    def __init__(self, *, durably: bool) -> None:
        """Count from 0. If `durably` is set, waits include the sync."""
        self.taken_in = self.handled = self.durable = 0
        self._durably = durably
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []

    def is_at(self, target: int) -> bool:
        """Return whether that many records have reached the state that waits require."""
        return (self.durable if self._durably else self.handled) >= target

    def handle(self) -> None:
        """Count a record that was written or dropped."""
        with self._changed:
            self.handled += 1
            self._tell()

    def sync(self, handled: int) -> None:
        """Note that the first `count` records are durable, or never will be."""
        with self._changed:
            self.durable = handled
            self._tell()

    def wait(self, seconds: float, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all accepted records are processed, at most `seconds`; return whether they are."""
        target = self.taken_in
        until = world.monotonic() + int(seconds * 1e9)
        with self._changed:
            while not self.is_at(target):
                left = (until - world.monotonic()) / 1e9
                if left <= 0 or give_up():
                    return False
                self._changed.wait(min(left, STEP_SECONDS))
        return True

    async def settle(self, seconds: float) -> bool:
        """Like `wait`, without blocking the event loop; returns at once if the loop is not an asyncio loop."""
        target = self.taken_in
        if self.is_at(target):
            return True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        waiting: _Waiting = (target, loop, loop.create_future())
        with self._changed:
            self._waiting.append(waiting)
            self._tell()
        try:
            await asyncio.wait((waiting[2],), timeout=seconds)
        finally:
            with self._changed:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
        return self.is_at(target)

    def _tell(self) -> None:
        self._changed.notify_all()
        if not self._waiting:
            return
        there = [each for each in self._waiting if self.is_at(each[0])]
        self._waiting = [each for each in self._waiting if not self.is_at(each[0])]
        for _, loop, future in there:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                loop.call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
