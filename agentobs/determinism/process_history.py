"""What runs in this process: entries of sessions, so that a replay can name what ran before it, and event loops."""

from __future__ import annotations

import asyncio

from agentobs import world
from agentobs.runtime import process


class State:
    """What ran in this process."""

    def __init__(self) -> None:
        self.ran: dict[str, str] = {}
        """The entries, each with the pytest test that first opened a session of it."""


def ran_in(entry: str) -> str | None:
    """Return the test in which a session of an entry was first opened in this process; None if there was none.

    The test is the id that pytest gives it, or an empty string outside of pytest.
    """
    return process.part(State).ran.get(entry)


def forget() -> None:
    """Forget which entries have run in this process."""
    process.part(State).ran.clear()


def note(entry: str | None) -> None:
    """Note that a session of an entry was opened."""
    state = process.part(State)
    if entry is not None and entry not in state.ran:
        state.ran[entry] = world.environment().get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def in_event_loop() -> bool:
    """Return whether an event loop of asyncio runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
