"""Open replays: the replays that are open in this process, each nested in the one before.

A replay belongs to the whole process: every client, thread and child of it is answered. So there is one at a time, or
several nested ones; two concurrent ones would be answered from each other's recordings.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import anyio

from agentobs.errors import UsageError
from agentobs.runtime import process


class Opened:
    """An open replay, and everything that must be undone when it ends."""

    def __init__(self) -> None:
        """Open it here, in this thread and task.

        Raises:
            UsageError: another one is open in another thread or task.
        """
        state = process.part(State)
        self.stack = ExitStack()
        """What is undone at its end."""
        self.has_ended = False
        """Whether it was told to end; it ends when all nested ones have ended."""
        self._thread, self._task = threading.current_thread(), _task()
        with _lock:
            if state.open and not state.open[-1]._holds(self):
                raise UsageError(
                    "a replay is already open in this process",
                    todo="Run them one after the other, or in processes (pytest -n)",
                )
            state.open.append(self)

    def _holds(self, other: Opened) -> bool:
        """Return whether another one starts where this one did: in its task, or in any task if this one started in
        none.
        """
        return self._thread is other._thread and self._task in (None, other._task)

    def end(self) -> None:
        """Undo everything, at the latest when all nested replays have ended.

        Each restores the state that it found, so only the innermost one can.
        """
        state = process.part(State)
        with _lock:
            self.has_ended = True
            ended: list[Opened] = []
            while state.open and state.open[-1].has_ended:
                ended.append(state.open.pop())
            with (
                ExitStack() as ending
            ):  # closes the last pushed first, and all whatever one of them raises
                for each in reversed(ended):
                    ending.push(each.stack)


class State:
    """The replays that are open in this process, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Opened] = []


_lock = threading.RLock()


def _task() -> int | None:
    """Return the identity of the running task; None outside of event loops."""
    try:
        return anyio.get_current_task().id
    except RuntimeError:
        return None
