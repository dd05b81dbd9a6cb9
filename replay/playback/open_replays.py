"""Opened: the replays that are open in this process, each inside of the one before.

A replay is the whole process's: every client, thread and child of it is answered. So there is one at a time, or one
inside of another; two beside each other would be answered from each other's recordings.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import anyio

from agentobs.errors import UsageError


class Opened:
    """One replay that is open, and all that has to be undone when it ends."""

    def __init__(self) -> None:
        """Open it here, in this thread and task.

        Raises:
            UsageError: another one is open in another thread or task.
        """
        self.stack = ExitStack()
        """What is undone at its end."""
        self.has_ended = False
        """Whether it was told to end; it does so when all have that were opened inside of it."""
        self._thread, self._task = threading.current_thread(), _task()
        with _lock:
            if _open and not _open[-1]._holds(self):
                raise UsageError(
                    "a replay is open already in this process",
                    todo="Run them one after the other, or in processes (pytest -n)",
                )
            _open.append(self)

    def _holds(self, other: Opened) -> bool:
        """Return whether another one begins where this one did: in its task, or in any where it did so in none."""
        return self._thread is other._thread and self._task in (None, other._task)

    def end(self) -> None:
        """Undo it all, at the latest when those have ended that were opened inside of it.

        Each puts back what it found, so that only the innermost can.
        """
        with _lock:
            self.has_ended = True
            ended: list[Opened] = []
            while _open and _open[-1].has_ended:
                ended.append(_open.pop())
            with (
                ExitStack() as ending
            ):  # closes the last pushed first, and all whatever one of them raises
                for each in reversed(ended):
                    ending.push(each.stack)


_open: list[Opened] = []
_lock = threading.RLock()


def _task() -> int | None:
    """Return the identity of the task that runs here; None outside of event loops."""
    try:
        return anyio.get_current_task().id
    except RuntimeError:
        return None
