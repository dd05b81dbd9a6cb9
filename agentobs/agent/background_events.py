"""The events of the background agents of a conversation, which are passed on while the agents run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from agentobs.agent.events import SubAgent
from agentobs.errors import error_kind, warn_once

EVENTS_MAX = 10_000
"""Maximum number of events that wait while no run passes them on. If there are more, the oldest are dropped. Our
choice.
"""

BackgroundListener = Callable[[SubAgent], object]
"""Receives each event of a background agent when it happens. It must return quickly. It is removed if it raises an
exception.
"""


class BackgroundEvents:
    """Queues events of background agents until a run of the conversation yields them. The events of each agent stay in
    order.
    """

    def __init__(self) -> None:
        """Create an empty queue without a listener."""
        self.listener: BackgroundListener | None = None
        """Receives each event immediately, even if no run is in progress; None if there is no listener."""
        self.is_used = False
        """Whether any background agent has been started."""
        self._waiting: deque[SubAgent] = deque(maxlen=EVENTS_MAX)
        self._new_event: asyncio.Future[None] | None = None
        """A future that is resolved when an event is added, while a run waits for an event."""

    def __len__(self) -> int:
        """Return the number of queued events."""
        return len(self._waiting)

    def put(self, event: SubAgent) -> None:
        """Add an event, and pass it to the listener."""
        self._waiting.append(event)
        listener = self.listener
        if listener is not None:
            try:
                listener(event)
            except Exception as error:
                self.listener = None
                warn_once(f"a listener of background agents failed: {error_kind(error)}")
        waiting = self._new_event
        if (
            waiting is not None
            and not waiting.done()
            and waiting.get_loop() is asyncio.get_running_loop()
        ):
            waiting.set_result(None)

    def take(self) -> Iterator[SubAgent]:
        """Yield the queued events, oldest first."""
        while self._waiting:
            yield self._waiting.popleft()

    @contextlib.contextmanager
    def waking(self, future: asyncio.Future[None]) -> Iterator[None]:
        """Resolve a future when an event is added, while the context is open."""
        self._new_event = future
        try:
            yield
        finally:
            self._new_event = None
