"""Lineage: the parent session of the next session while a fork runs.

The agent of a fork opens its session as usual and does not know that it is a fork. The code that runs the fork sets the
parent session here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from agentobs.runtime import process


@dataclass(frozen=True, slots=True)
class Parent:
    """The session that is forked."""

    session_id: str | None
    """Its full ID; None if the fixture does not name it."""
    turn: int
    """The turn with the last replayed response, from 1."""

    def fork_name(self, name: str) -> str:
        """Return the name of a fork of a session with the name `name`; it is a label if `name` is one."""
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
    """The fork that runs in this process."""

    def __init__(self) -> None:
        self.parent: Parent | None = None
        """The parent of the next session."""


@contextlib.contextmanager
def forking(parent: Parent) -> Iterator[None]:
    """Make the next session of this process a fork of `parent`; later sessions are ordinary sessions."""
    state = process.state(State)
    before, state.parent = state.parent, parent
    try:
        yield
    finally:
        state.parent = before


def take_parent() -> Parent | None:
    """Remove and return the parent of the next session, so that it applies to one session only."""
    state = process.state(State)
    with _lock:
        parent, state.parent = state.parent, None
    return parent
