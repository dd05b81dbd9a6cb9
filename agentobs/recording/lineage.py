"""Lineage: the parent of the next session, while a fork runs.

The agent of a fork opens its session as usual and does not know that it is a fork; the code that runs the fork does.
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
    """The turn whose response is the last replayed one, from 1."""

    def name_of(self, name: str) -> str:
        """Return the name of the fork of a session called `name`: a label if `name` is one."""
        suffix = f"-fork-{self.turn}"
        return f"{name[: NAME_MAX - len(suffix)]}{suffix}"


NAME_MAX = 128
"""The longest name that is a label, in characters; see `agentobs.records.labels`."""

_lock = threading.RLock()
# If another thread holds this lock during a fork, it stays locked in the child.
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
    """Make the next session of this process a fork of `parent`; later ones are sessions like any other."""
    state = process.part(State)
    before, state.parent = state.parent, parent
    try:
        yield
    finally:
        state.parent = before


def take_parent() -> Parent | None:
    """Return the parent of the session that is being opened. Each parent is returned once."""
    state = process.part(State)
    with _lock:
        taken, state.parent = state.parent, None
    return taken
