"""Listening: several consumers of one run, each with a bounded buffer of its own.

The run is driven by nobody's pace but its own: a consumer that is slow loses what does not fit into its
buffer, is told how much, and never loses the result.
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
"""Events that wait for one consumer at most. Our choice: a long answer has about 300 deltas."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A consumer was too slow: so many events are not there."""

    count: int


class Broadcast:
    """One run for several consumers. Listen first, then drive it."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        """Take the events of a run, as `run` returns them."""
        self._events = events
        self._buffers: list[_Buffer] = []
        self._result: Result | None = None
        self._has_ended = False

    def listen(self, capacity: int = CAPACITY) -> AsyncIterator[Event | Missed]:
        """Return the events from now on, the result last; after the end the result alone.

        Every consumer gets values of its own: what one does to an event, no other sees. Where the run
        ends without a result, by an exception or because it was left, the events end, too.

        Args:
            capacity: how many may wait, from 1; the oldest go first, and a `Missed` stands for them.
        """
        buffer = _Buffer(max(capacity, 1))
        self._buffers.append(buffer)
        if self._has_ended:
            if self._result is not None:
                buffer.put(self._result)
            buffer.end()
        return buffer.events()

    async def drive(self) -> Result | None:
        """Run to the end and return the result; what the run raises is raised here.

        Returns None where the events ended without a result.
        """
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._result = event if isinstance(event, Result) else None
                    for buffer in self._buffers:
                        buffer.put(event)
                    # Much may come without a wait; consumers that keep up shall have their turn.
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
    """Return a copy of an event; a result is shared, for its output and its exception cannot be copied."""
    return event if isinstance(event, Result) else copy.deepcopy(event)
