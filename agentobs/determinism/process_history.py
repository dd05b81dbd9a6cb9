"""The history of this process: the session entries that have run in it, which a replay reports as leftover state."""

from __future__ import annotations

import asyncio

from agentobs import world
from agentobs.runtime import process


class State:
    """The session entries that have run in this process."""

    def __init__(self) -> None:
        self.first_tests: dict[str, str] = {}
        """Entries, mapped to the ID of the pytest test that first opened a session of that entry."""


def first_test_of(entry: str) -> str | None:
    """Return the test that first opened a session of an entry in this process; None if no session was opened.

    The result is the pytest ID of the test, or an empty string if pytest does not run.
    """
    return process.state(State).first_tests.get(entry)


def forget() -> None:
    """Forget which entries have run in this process."""
    process.state(State).first_tests.clear()


def note(entry: str | None) -> None:
    """Note that a session of an entry was opened."""
    state = process.state(State)
    if entry is not None and entry not in state.first_tests:
        state.first_tests[entry] = (
            world.environment().get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        )


def in_event_loop() -> bool:
    """Return whether an asyncio event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
