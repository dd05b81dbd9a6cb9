"""Lineage: the parent of the next session, while a fork runs.

The agent of a fork opens its session as usual and does not know that it is a fork; the code that runs the fork does.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parent:
    """The session that is forked."""

    session_id: str | None
    """Its full id; None if the fixture does not name it."""
    turn: int
    """The turn whose answer is the last replayed one, from 1."""

    def name_of(self, name: str) -> str:
        """Return the name of the fork of a session called `name`: a label if `name` is one."""
        suffix = f"-fork-{self.turn}"
        return f"{name[: NAME_MAX - len(suffix)]}{suffix}"


NAME_MAX = 128
"""The longest name that is a label, in characters; see `agentobs.records.labels`."""

_lock = threading.RLock()
# A fork while another thread holds it would leave the child with a lock that nobody releases.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_parent: Parent | None = None


@contextlib.contextmanager
def forking(parent: Parent) -> Iterator[None]:
    """Make the next session of this process a fork of `parent`; later ones are sessions like any other."""
    global _parent
    before, _parent = _parent, parent
    try:
        yield
    finally:
        _parent = before


def take_parent() -> Parent | None:
    """Return the parent of the session that is being opened; each parent is returned once."""
    global _parent
    with _lock:
        taken, _parent = _parent, None
    return taken
