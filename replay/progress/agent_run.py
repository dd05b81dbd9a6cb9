"""The run of the agent: its call, its process and threads, its clock, and when it was last active."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from agentobs import world
from replay.virtual_time.virtual_clock import VirtualClock


class AgentRun:
    """The run of the agent in this replay."""

    def __init__(self) -> None:
        """Create the state before the agent starts."""
        self.call: functools.partial[Any] | None = None
        """The call with which this replay starts the agent; None for the recorded call."""
        self.test_id = ""
        """The ID of the pytest test that replays; empty outside of a marked test."""
        self.process_id = world.process_id()
        self.foreign_requests_file = ""
        """The file in which processes that `multiprocessing` started note their requests."""
        self.earlier_threads = frozenset(threading.enumerate())
        """The threads that existed before the replay, which do not belong to the agent."""
        self.clock: VirtualClock | None = None
        """The virtual clock of the agent; None if the agent uses real time."""
        self.before_live: Callable[[], None] | None = None
        """Is called once, before the first tool of a fork runs live."""
        self.active_count = 0
        """The number of calls of the agent that are in progress."""
        self.is_stopping = False
        """Whether the replay should end; it may still answer until nested replays have ended."""
        self._active_ns = world.monotonic()

    def go_live(self) -> None:
        """Let everything run live from now on; also called for later responses of a fork."""
        if self.clock is not None:
            self.clock.go_live()
        before_live, self.before_live = self.before_live, None
        if before_live is not None:
            before_live()

    def note_activity(self) -> None:
        """Record that the agent has sent or emitted something."""
        self._active_ns = world.monotonic()

    def idle_ns(self) -> int:
        """Return for how long the agent has neither sent nor emitted anything."""
        return world.monotonic() - self._active_ns
