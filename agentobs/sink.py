"""The sink: where every record goes, and the one dispatcher behind it.

Records may be emitted before anybody listens: a bounded queue keeps the first of them. Emitting never
raises and never waits; a consumer that raises is counted, reported once, and removed.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentobs.errors import say_once
from agentobs.records.exchanges import (
    ModelExchange,
    SessionCall,
    ToolExchange,
    WorldExchange,
    weight,
)
from agentobs.records.facts import Fact

Record = Fact | ModelExchange | ToolExchange | WorldExchange | SessionCall
Consumer = Callable[[Record], None]
"""Takes one record, quickly; whatever it raises takes it off the list."""

WAITING_BYTES = 8 * 1024 * 1024
"""What may wait for a first consumer; it comes in the same breath, or not at all."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of the records of a sink."""

    emitted: int
    """Records that were handed in."""
    queued: int
    """Records that wait for a first consumer."""
    dropped: int
    """Records that found the queue full, or closed, before there was a consumer."""
    consumers_removed: int
    """Consumers that raised and were taken off."""


class Sink:
    """A dispatcher to a fixed tuple of consumers, with a bounded queue in front of the first."""

    def __init__(self, capacity: int = 4096) -> None:
        """Keep at most `capacity` records, and `WAITING_BYTES` of them, until a consumer is attached."""
        self._consumers: tuple[Consumer, ...] = ()
        self._waiting: deque[Record] = deque()
        self._capacity, self._waiting_bytes, self._given_up = capacity, 0, False
        # Reentrant: the garbage collector may end an exchange, and so emit it, in the middle of an emit.
        self._lock = threading.RLock()
        self._emitted = self._dropped = self._removed = 0

    def emit(self, record: Record) -> None:
        """Hand a record to every consumer, or keep it until there is one."""
        self._emitted += 1
        consumers = self._consumers
        if not consumers:
            with self._lock:
                consumers = self._consumers
                if not consumers:
                    self._keep(record)
                    return
        for consumer in consumers:
            self._give(consumer, record)

    def attach(self, *consumers: Consumer) -> bool:
        """Attach the consumers and hand them what waited. Returns False where some are attached already."""
        with self._lock:
            if self._consumers or not consumers:
                return False
            while self._waiting:
                record = self._waiting.popleft()
                for consumer in consumers:
                    self._give(consumer, record)
            self._waiting_bytes, self._given_up = 0, False
            self._consumers = consumers
            return True

    def give_up(self) -> None:
        """Keep nothing more and forget what waits, until a consumer is attached after all."""
        with self._lock:
            self._given_up = True
            self._dropped += len(self._waiting)
            self._forget()

    def detach(self) -> tuple[Consumer, ...]:
        """Take all consumers off, forget what waits for a first one, and return them."""
        with self._lock:
            consumers, self._consumers = self._consumers, ()
            self._forget()
            return consumers

    @contextlib.contextmanager
    def redirect(self, consumer: Consumer) -> Iterator[None]:
        """Send every record to `consumer` alone, for as long as the context is open."""
        with self._lock:
            before, self._consumers = self._consumers, (consumer,)
        try:
            yield
        finally:
            with self._lock:
                self._consumers = before

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        return Statistics(self._emitted, len(self._waiting), self._dropped, self._removed)

    def _keep(self, record: Record) -> None:
        size = weight(record)
        full = len(self._waiting) >= self._capacity
        if self._given_up or full or self._waiting_bytes + size > WAITING_BYTES:
            self._dropped += 1
        else:
            self._waiting.append(record)
            self._waiting_bytes += size

    def _forget(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _give(self, consumer: Consumer, record: Record) -> None:
        try:
            consumer(record)
        except Exception as error:
            self._removed += 1
            self._consumers = tuple(c for c in self._consumers if c is not consumer)
            with contextlib.suppress(Exception):  # even the text of a stranger's error may fail
                say_once(
                    f"a consumer of records failed and was removed: {error!r}. "
                    "The agent goes on; what it recorded until here is kept.",
                    about=f"consumer {consumer!r}",
                )


sink = Sink()
"""The sink of this process."""
