"""Progress: the number of records that the recorder has processed, and waits for this number.

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

_Waiter = tuple[int, asyncio.AbstractEventLoop, "asyncio.Future[None]"]
"""The number of records that a task waits for, its event loop, and the future that it awaits."""


class Progress:
    """Counts of records: accepted into the queue, processed (written or dropped), and synced."""

    def __init__(self, *, durably: bool) -> None:
        """Count from 0. If `durably` is set, a wait ends only after the records were synced."""
        self.accepted = self.processed = self.synced = 0
        self._durably = durably
        self._changed = threading.Condition()
        self._waiters: list[_Waiter] = []

    def has_reached(self, target: int) -> bool:
        """Return whether the first `target` records are processed, and synced if waits include that."""
        return (self.synced if self._durably else self.processed) >= target

    def note_processed(self) -> None:
        """Count a record that was written or dropped."""
        with self._changed:
            self.processed += 1
            self._notify()

    def note_synced(self, records: int) -> None:
        """Note that the first `records` records are durable, or never will be because the sync failed."""
        with self._changed:
            self.synced = records
            self._notify()

    def wait(self, seconds: float, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all records accepted so far are processed; return whether they are.

        Args:
            seconds: the longest wait.
            give_up: called about every 50 ms; the wait ends when it returns True.
        """
        target = self.accepted
        deadline = world.monotonic() + int(seconds * 1e9)
        with self._changed:
            while not self.has_reached(target):
                remaining_s = (deadline - world.monotonic()) / 1e9
                if remaining_s <= 0 or give_up():
                    return False
                self._changed.wait(min(remaining_s, STEP_SECONDS))
        return True

    async def settle(self, seconds: float) -> bool:
        """Like `wait`, without blocking the event loop; if the loop is not an asyncio loop, this does not wait."""
        target = self.accepted
        if self.has_reached(target):
            return True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        waiter: _Waiter = (target, loop, loop.create_future())
        with self._changed:
            self._waiters.append(waiter)
            self._notify()
        try:
            await asyncio.wait((waiter[2],), timeout=seconds)
        finally:
            with self._changed:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.has_reached(target)

    def _notify(self) -> None:
        """Wake up waiting threads, and the tasks whose records have been processed."""
        self._changed.notify_all()
        if not self._waiters:
            return
        finished = [each for each in self._waiters if self.has_reached(each[0])]
        self._waiters = [each for each in self._waiters if not self.has_reached(each[0])]
        for _, loop, future in finished:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                loop.call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
