"""Lineage: the parent session of the next session while a fork runs.

The agent of a fork opens its session as usual and does not know that it is a fork. The code that runs the fork sets
`Runtime.fork_parent`.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from agentobs.runtime import current


@dataclass(frozen=True, slots=True)
class Parent:
    """The session that is forked."""

    session_id: str | None
    """Its full ID; None if the fixture does not name it."""
    turn: int
    """The turn with the last replayed response, from 1."""

    def fork_name(self, name: str) -> str:
        """Return the name of a fork of a session with the name `name`; the result is a label if `name` is a label."""
        suffix = f"-fork-{self.turn}"
        return f"{name[: NAME_MAX - len(suffix)]}{suffix}"


NAME_MAX = 128
"""The maximum length of a label, in characters; see `agentobs.records.labels`."""

_lock = threading.RLock()
# Without these handlers, the lock would stay locked in the child if another thread holds it during the fork.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class State:
    """Whether the fork that runs has opened its session."""

    def __init__(self) -> None:
        self.is_taken = False
        """Whether the parent was taken, so that later sessions are ordinary sessions."""


def take_parent() -> Parent | None:
    """Return the parent of the next session if a fork runs; None after the first call, and if no fork runs."""
    runtime = current()
    if not isinstance(runtime.fork_parent, Parent):
        return None
    with _lock:
        state = runtime.state(State)
        is_taken, state.is_taken = state.is_taken, True
    return None if is_taken else runtime.fork_parent
