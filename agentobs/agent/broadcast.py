"""Distribute the events of one run to several consumers, each with its own bounded buffer.

No consumer slows down the run. A slow consumer loses the events that do not fit into its buffer, and
receives their number instead. It always receives the result.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from agentobs.agent.events import Event
from agentobs.agent.run_result import Result

CAPACITY = 1024
"""Maximum number of buffered events per consumer. Our choice: a long response has about 300 deltas."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The number of events that a consumer lost because it was too slow."""

    count: int


class Broadcast:
    """Passes the events of one run to several consumers. Call `listen` for each consumer, then `drive`."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        """Wrap the events of a run, as returned by `run`."""
        self._events = events
        self._buffers: list[_Buffer] = []
        self._result: Result | None = None
        self._has_ended = False

    def listen(self, capacity: int = CAPACITY) -> AsyncIterator[Event | Missed]:
        """Return an iterator over all further events, ending with the result; after the run has ended, only the result.

        Each consumer receives copies, so changes to an event are not visible to other consumers. If the run ends
        without a result, because it raised an exception or was closed, the iteration ends as well.

        Args:
            capacity: the size of the buffer, at least 1. If it is full, the oldest events are
                dropped, and replaced by one `Missed`.
        """
        buffer = _Buffer(max(capacity, 1))
        self._buffers.append(buffer)
        if self._has_ended:
            if self._result is not None:
                buffer.put(self._result)
            buffer.end()
        return buffer.events()

    async def drive(self) -> Result | None:
        """Drive the run to its end, and return the result; exceptions of the run are raised here.

        Returns None if the events ended without a result.
        """
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._result = event if isinstance(event, Result) else None
                    for buffer in self._buffers:
                        buffer.put(event)
                    # Many events may arrive without an await; let the other consumers run.
                    await asyncio.sleep(0)
        finally:
            self._has_ended = True
            for buffer in self._buffers:
                buffer.end()
        return self._result


class _Buffer:
    def __init__(self, capacity: int) -> None:
        self._pending: deque[Event] = deque()
        self._capacity, self._missed, self._has_ended = capacity, 0, False
        self._has_news = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._pending) >= self._capacity:
            self._pending.popleft()
            self._missed += 1
        self._pending.append(event)
        self._has_news.set()

    def end(self) -> None:
        self._has_ended = True
        self._has_news.set()

    async def events(self) -> AsyncGenerator[Event | Missed, None]:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._missed or self._pending:
                if self._missed:
                    count, self._missed = self._missed, 0
                    yield Missed(count)
                if self._pending:
                    yield _consumer_copy(self._pending.popleft())
            if self._has_ended:
                return


def _consumer_copy(event: Event) -> Event:
    """Return a copy of an event. A result is not copied, because its output or exception may not be copyable."""
    return event if isinstance(event, Result) else copy.deepcopy(event)
