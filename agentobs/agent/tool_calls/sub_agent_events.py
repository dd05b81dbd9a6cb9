"""Rising: events of agents that calls started, on their way up to who listens to the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from agentobs.agent.events import SubAgent

WAITING_MAX = 256
"""How many events may wait to be taken before the agents wait, too. Our choice: a slow listener slows them."""


class Rising:
    """Events that several agents tell and one run takes; those of one agent stay in their order."""

    def __init__(self) -> None:
        """Begin with none."""
        self.is_used = False
        """Whether there is anybody who tells something."""
        self._waiting: deque[SubAgent] = deque()
        self._news: asyncio.Future[None] | None = None
        """Waited for by the run, until something waits to be taken."""
        self._room = asyncio.Event()

    async def tell(self, event: SubAgent) -> None:
        """Add an event, as soon as there is room."""
        while len(self._waiting) >= WAITING_MAX:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(event)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def take(self) -> Iterator[SubAgent]:
        """Yield what waits, oldest first."""
        while self._waiting:
            event = self._waiting.popleft()
            self._room.set()
            yield event

    async def wait(self, tasks: set[asyncio.Task[Any]], until: str) -> None:
        """Return when something waits, or some tasks have ended.

        `until` is how many, as `asyncio.wait` names it; where somebody tells something, the first of them is enough.
        """
        if not self.is_used:
            await asyncio.wait(tasks, return_when=until)
            return
        if self._waiting:
            return
        self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait({*tasks, self._news}, return_when=asyncio.FIRST_COMPLETED)
