"""A queue that passes events of sub-agents to the consumer of the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from agentobs.agent.background_events import BackgroundEvents
from agentobs.agent.events import SubAgent

WAITING_MAX = 256
"""Maximum number of queued events. If the queue is full, the agents wait for the consumer. Our choice."""


class SubAgentEvents:
    """A queue that several agents fill and one run empties. The events of each agent stay in order."""

    def __init__(self, background: BackgroundEvents) -> None:
        """Create an empty queue.

        Args:
            background: the events of background agents, which are passed on as well.
        """
        self.is_used = False
        """Whether any agent has been started that may put events into the queue."""
        self._background = background
        self._waiting: deque[SubAgent] = deque()
        self._new_event: asyncio.Future[None] | None = None
        """A future that is resolved when an event is added, while the run waits for an event."""
        self._has_space = asyncio.Event()

    @property
    def may_receive(self) -> bool:
        """Whether events may arrive from agents that this response started, or from background agents."""
        return self.is_used or self._background.is_used

    async def put(self, event: SubAgent) -> None:
        """Add an event, as soon as the queue is not full."""
        while len(self._waiting) >= WAITING_MAX:
            self._has_space.clear()
            await self._has_space.wait()
        self._waiting.append(event)
        if self._new_event is not None and not self._new_event.done():
            self._new_event.set_result(None)

    def take(self) -> Iterator[SubAgent]:
        """Yield the queued events, oldest first; then the events of background agents."""
        while self._waiting:
            event = self._waiting.popleft()
            self._has_space.set()
            yield event
        yield from self._background.take()

    async def wait(self, tasks: set[asyncio.Task[Any]], return_when: str) -> None:
        """Wait until an event is queued or tasks have ended.

        `return_when` is passed to `asyncio.wait`. If agents put events into the queue, the wait always ends with the
        first finished task.
        """
        if not self.may_receive:
            await asyncio.wait(tasks, return_when=return_when)
            return
        if self._waiting or self._background:
            return
        self._new_event = asyncio.get_running_loop().create_future()
        with self._background.waking(self._new_event):
            await asyncio.wait({*tasks, self._new_event}, return_when=asyncio.FIRST_COMPLETED)
