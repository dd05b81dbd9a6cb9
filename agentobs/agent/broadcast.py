"""Distribute the events of one run to several consumers, each with its own bounded buffer.

No consumer slows down the run. A slow consumer loses the events that do not fit into its buffer and
gets their number, but it always receives the result.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from agentobs.agent.events import Event, Result

CAPACITY = 1024
"""Maximum number of buffered events per consumer. Our choice: a long response has about 300 deltas."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The number of events that a consumer lost because it was too slow."""

    count: int


class Broadcast:
    """One run for several consumers. Call `listen` first, then `drive`."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        """Wrap the events of a run, as returned by `run`."""
        self._events = events
        self._buffers: list[_Buffer] = []
        self._result: Result | None = None
        self._has_ended = False

    def listen(self, capacity: int = CAPACITY) -> AsyncIterator[Event | Missed]:
        """Yield all further events, the result last; after the end of the run, only the result.

        Each consumer receives its own copies, so changes to an event are not visible to others. If the run ends without
        a result, because of an exception or because it was closed, the iteration ends as well.

        Args:
            capacity: buffer size, at least 1. The oldest events are dropped first and replaced by
                one `Missed`.
        """
        buffer = _Buffer(max(capacity, 1))
        self._buffers.append(buffer)
        if self._has_ended:
            if self._result is not None:
                buffer.put(self._result)
            buffer.end()
        return buffer.events()

    async def drive(self) -> Result | None:
        """Run to the end and return the result; exceptions of the run are raised here.

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
        self._waiting: deque[Event] = deque()
        self._capacity, self._missed, self._ended = capacity, 0, False
        self._some = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._waiting) >= self._capacity:
            self._waiting.popleft()
            self._missed += 1
        self._waiting.append(event)
        self._some.set()

    def end(self) -> None:
        self._ended = True
        self._some.set()

    async def events(self) -> AsyncGenerator[Event | Missed, None]:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._missed or self._waiting:
                if self._missed:
                    count, self._missed = self._missed, 0
                    yield Missed(count)
                if self._waiting:
                    yield _own(self._waiting.popleft())
            if self._ended:
                return


def _own(event: Event) -> Event:
    """Return a copy of an event. A result is shared, because its output and its exception cannot be
    copied.
    """
    return event if isinstance(event, Result) else copy.deepcopy(event)
