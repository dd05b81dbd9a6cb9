"""Open replays: the replays that are open in this process, each nested in the previous one.

A replay answers every client, thread and child of the process. Therefore only one replay, or several nested ones, may
be open: the agents of two concurrent replays would get responses from each other's recordings.
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
        """Open a replay in this thread and task.

        Raises:
            UsageError: a replay is open in another thread or task.
        """
        state = process.state(State)
        self.stack = ExitStack()
        """The cleanup at the end of the replay."""
        self.has_ended = False
        """Whether this replay should end; it ends when all nested replays have ended."""
        self._thread, self._task = threading.current_thread(), _task()
        with _lock:
            if state.open and not state.open[-1]._may_contain(self):
                raise UsageError(
                    "a replay is already open in this process",
                    todo="Run them one after the other, or in processes (pytest -n)",
                )
            state.open.append(self)

    def _may_contain(self, other: Opened) -> bool:
        """Return whether a replay may be nested in this one.

        Both must be in the same thread and task. If this replay was opened outside of tasks, the nested replay may be
        in any task.
        """
        return self._thread is other._thread and self._task in (None, other._task)

    def end(self) -> None:
        """Clean up when all nested replays have ended.

        Each replay restores the state that it found, so only the innermost replay can be cleaned up.
        """
        state = process.state(State)
        with _lock:
            self.has_ended = True
            ended: list[Opened] = []
            while state.open and state.open[-1].has_ended:
                ended.append(state.open.pop())
            # The stack closes the replays in reverse order, and closes all of them even if one raises an exception.
            with ExitStack() as cleanup:
                for each in reversed(ended):
                    cleanup.push(each.stack)


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
