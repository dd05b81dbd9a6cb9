"""Queue for events of sub-agents on their way to the consumer of the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from agentobs.agent.events import SubAgent

WAITING_MAX = 256
"""Maximum number of queued events before the agents wait. Our choice: a slow consumer slows them down."""


class SubAgentEvents:
    """Events that several agents put and one run takes; the events of each agent stay in order."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self.is_used = False
        """Whether any agent puts events."""
        self._waiting: deque[SubAgent] = deque()
        self._news: asyncio.Future[None] | None = None
        """Resolved when an event is available; the run waits for it."""
        self._room = asyncio.Event()

    async def tell(self, event: SubAgent) -> None:
        """Add an event as soon as there is room."""
        while len(self._waiting) >= WAITING_MAX:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(event)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def take(self) -> Iterator[SubAgent]:
        """Yield the queued events, oldest first."""
        while self._waiting:
            event = self._waiting.popleft()
            self._room.set()
            yield event

    async def wait(self, tasks: set[asyncio.Task[Any]], until: str) -> None:
        """Return when an event is queued or some tasks have ended.

        `until` is the condition for `asyncio.wait`; if agents put events, the first finished task
        is enough.
        """
        if not self.is_used:
            await asyncio.wait(tasks, return_when=until)
            return
        if self._waiting:
            return
        self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait({*tasks, self._news}, return_when=asyncio.FIRST_COMPLETED)
