"""The sink: receives every record, and delivers it to the consumers.

Records may be emitted before a consumer is attached. A bounded queue keeps the first records, and the first consumer
then receives them in order, in small batches, and never inside the call that attaches it. When the queue is empty, each
record is delivered directly by the thread that emits it. Emitting never raises and never waits for another thread: if
another thread is delivering, that thread also delivers the new record. A consumer that raises an exception is counted,
reported once, and removed. A replay does not attach a consumer: its runtime has one (`agentobs.runtime`), which
receives the records in place of the attached consumers.

While a consumer runs, no lock is held. Only one thread delivers records at a time, and the other threads do not wait
for it. A record may therefore be emitted from a signal handler or during garbage collection, and a process may fork at
any time.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agentobs import world
from agentobs.errors import error_kind, warn_once
from agentobs.records.event_catalog import kind_of
from agentobs.records.exchanges import (
    ModelExchange,
    ObservedEffect,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
    queue_bytes,
)
from agentobs.records.facts import Event, Fact
from agentobs.records.labels import Label
from agentobs.runtime import process

Record = (
    Fact
    | ModelExchange
    | ToolExchange
    | WorldExchange
    | ObservedEffect
    | SessionCall
    | SessionReturn
)
Consumer = Callable[[Record], None]
"""Receives each record, and must return quickly. It is removed if it raises an exception."""

WAITING_RECORDS = 4096
"""The maximum number of records that wait for the first consumer. Our choice."""
WAITING_BYTES = 8 * 1024 * 1024
"""The maximum size of the records that wait for the first consumer. Our choice: the first consumer is attached soon or
never.
"""
BACKLOG_BYTES = 64 * 1024 * 1024
"""The maximum size of the queue after a consumer was attached; if it is larger, the consumer is stuck. Our choice: the
same size as the queue of the recorder.
"""
BATCH = 64
"""The maximum number of queued records that are delivered before other work continues. Our choice."""
KNOWN_DROPS = 1024
"""The number of pairs of session and kind for which dropped records are counted separately. Our choice."""
RETIRED_MAX = 10_000
"""The maximum number of sessions with a stopped recorder that are remembered. Our choice."""

_LABELS = {
    ModelExchange: Label("attempt"),
    ToolExchange: Label("tool"),
    WorldExchange: Label("world_answer"),
    SessionCall: Label("session"),
}
"""The kinds of records without which a session cannot be replayed, with the kind under which they are counted."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of the records of a sink."""

    emitted: int
    """Records that were emitted."""
    queued: int
    """Records in the queue."""
    dropped: int
    """Records that were dropped because the queue was full or closed, or the recorder of their session was stopped."""
    consumers_removed: int
    """Consumers that raised an exception and were removed."""
    refused_attaches: int = 0
    """How often consumers could not be attached because other consumers were already attached."""
    dropped_by_kind: Mapping[str, int] = field(default_factory=dict)
    """The dropped records, by kind."""


class Sink:
    """Delivers records to a fixed tuple of consumers, and queues them until the first consumer is attached."""

    def __init__(self, capacity: int = WAITING_RECORDS) -> None:
        """Keep at most `capacity` records, and `WAITING_BYTES`, until a consumer is attached."""
        state = process.state(State)
        self._consumers: tuple[Consumer, ...] = ()
        self._capacity = capacity
        self._retired: dict[str, None] = {}
        """Sessions whose further records are dropped, oldest first."""
        self._reset()
        state.sinks.add(self)

    def _reset(self) -> None:
        """Clear the queue and the counts, in a new sink or in a forked child process."""
        # Reentrant, because a signal handler or the garbage collector may emit a record at any point. It is never
        # held while other code runs.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Record, int]] = deque()
        self._waiting_bytes, self._given_up = 0, False
        self._turn: object = None
        """A token of the thread that is delivering; None if no thread is. No thread waits for it."""
        self._turn_thread = 0
        self._is_drain_scheduled = False
        """Whether the event loop or a thread will deliver the queue."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emitted = self._removed = self._refused_attaches = 0
        self._dropped: Counter[str] = Counter()
        self._unreported_drops: Counter[tuple[str, Label, bool]] = Counter()
        """Dropped records that are not reported yet, by session, kind, and whether the session is incomplete without
        them.
        """

    def emit(self, record: Record) -> None:
        """Deliver a record to every consumer, or queue it if it cannot be delivered now."""
        runtime = process.runtime
        if runtime.consumer is not None:
            self._deliver(runtime.consumer, record)
            if not runtime.continues_live:
                self._emitted += 1
                return
        if self._retired and session_of(record) in self._retired:
            self._drop_retired(record)
            return
        consumers: tuple[Consumer, ...] = ()
        me = object()
        try:
            with self._lock:
                self._emitted += 1
                if self._turn is None and not self._waiting and not self._unreported_drops:
                    consumers = self._consumers
                    if consumers:
                        self._turn, self._turn_thread = me, threading.get_ident()
            for consumer in consumers:
                self._deliver(consumer, record)
        finally:
            # There is no call between the check and the release, so no signal handler can run between them.
            if self._turn is me:
                self._turn = None
        if not consumers:
            self._queue(record)
        if self._waiting or self._unreported_drops:
            self._schedule_drain()

    async def settle(self, seconds: float) -> None:
        """Wait until all records emitted so far are durable, at most `seconds` for each consumer.

        The event loop continues during the wait. A consumer is included if it has an async method `settle(seconds)`.
        """
        for consumer in self._consumers:
            if (settle := getattr(consumer, "settle", None)) is not None:
                await settle(seconds)

    def attach(self, *consumers: Consumer) -> bool:
        """Attach consumers and schedule the delivery of the queue, in order. Only the first call succeeds.

        The running event loop delivers the queue between other work; without an event loop, a thread does.

        Returns:
            Whether these consumers are attached now. If other consumers were already attached, this returns False and
            counts the call.
        """
        with self._lock:
            if self._consumers or not consumers or _is_redirected():
                self._refused_attaches += 1
                return False
            self._consumers, self._given_up = consumers, False
            if not self._waiting and not self._unreported_drops:
                return True
            self._is_drain_scheduled = True
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._start_thread()
        else:
            self._loop.call_soon(self._tick, self._loop)
        return True

    def flush(self, seconds: float = 5.0) -> bool:
        """Deliver the queue now; return whether it is empty. Without a consumer, queued records stay in the queue.

        If another thread is delivering, wait for it at most `seconds`. Inside a consumer this does nothing, because the
        wait might never end.
        """
        deadline = world.monotonic() + int(seconds * 1e9)
        while self._consumers and (
            self._waiting or self._unreported_drops or self._turn is not None
        ):
            if self._turn is not None:
                if self._turn_thread == threading.get_ident() or world.monotonic() > deadline:
                    return False
                world.pause(0.001)
            self._deliver_queue(BATCH)
        return not (self._waiting or self._unreported_drops)

    def give_up(self) -> None:
        """Drop the queue and all further records until a consumer is attached."""
        with self._lock:
            self._given_up = True
            while self._waiting:
                self._drop(self._waiting.popleft()[0])
            self._waiting_bytes = 0

    def detach(self) -> tuple[Consumer, ...]:
        """Remove all consumers, clear the queue, and return the removed consumers."""
        with self._lock:
            consumers, self._consumers = self._consumers, ()
            self._waiting.clear()
            self._unreported_drops.clear()
            self._waiting_bytes, self._is_drain_scheduled, self._loop = 0, False, None
            return consumers

    def retire(self, session_ids: Iterable[str]) -> None:
        """Drop and count further records of some sessions, because the next consumer would not have their starts."""
        with self._lock:
            self._retired |= dict.fromkeys(session_ids)
            while len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        with self._lock:
            return Statistics(
                self._emitted,
                len(self._waiting),
                self._dropped.total(),
                self._removed,
                self._refused_attaches,
                dict(self._dropped),
            )

    def _queue(self, record: Record) -> None:
        """Queue a record, after a report of dropped records if there are any; if the queue is full, drop it."""
        size = queue_bytes(record)
        with self._lock:
            if self._unreported_drops and self._has_space(size):
                self._queue_drop_reports()
            if self._has_space(size):
                self._waiting.append((record, size))
                self._waiting_bytes += size
            else:
                self._drop(record)

    def _has_space(self, size: int) -> bool:
        if self._consumers:
            return self._waiting_bytes + size <= BACKLOG_BYTES
        if self._given_up or len(self._waiting) >= self._capacity:
            return False
        return self._waiting_bytes + size <= WAITING_BYTES

    def _drop_retired(self, record: Record) -> None:
        """Count a record of a retired session as dropped. It is not reported, because no consumer knows the session."""
        kind = _kind_of(record)
        with self._lock:
            self._emitted += 1
            self._dropped[str(kind)] += 1

    def _drop(self, record: Record) -> None:
        """Count a record as dropped, to be reported later."""
        is_exchange = type(record) in _LABELS
        kind = _kind_of(record)
        self._dropped[str(kind)] += 1
        key = session_of(record), kind, is_exchange
        if key in self._unreported_drops or len(self._unreported_drops) < KNOWN_DROPS:
            self._unreported_drops[key] += 1

    def _queue_drop_reports(self) -> None:
        """Queue reports of dropped records, as many as the queue has space for."""
        for key in list(self._unreported_drops):
            event = _drop_report(*key, self._unreported_drops[key])
            size = queue_bytes(event)
            if not self._has_space(size):
                return
            del self._unreported_drops[key]
            self._waiting.append((event, size))
            self._waiting_bytes += size

    def _schedule_drain(self) -> None:
        """Ensure that the queue will be delivered if a consumer is attached.

        The emitting thread delivers a batch itself if no delivery is scheduled or the queue is too long, so that no
        record of a burst is lost while the event loop is busy.
        """
        if not self._consumers:
            return
        loop = self._loop
        is_loop_stopped = loop is not None and not loop.is_running()
        if self._is_drain_scheduled and not is_loop_stopped and len(self._waiting) < self._capacity:
            return
        if not self._deliver_queue(BATCH):
            # Occasionally yield to the delivering thread, because the queue grows faster than it is delivered.
            if len(self._waiting) >= self._capacity and self._emitted % BATCH == 0:
                world.pause(0)
        elif self._waiting or self._unreported_drops:
            with self._lock:
                needs_thread = is_loop_stopped or not self._is_drain_scheduled
                self._is_drain_scheduled = True
            if needs_thread:
                self._loop = None
                self._start_thread()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver a batch in the event loop, and schedule the next one."""
        if self._loop is loop:
            self._deliver_queue(BATCH)
            if not self._is_drained():
                loop.call_soon(self._tick, loop)

    def _start_thread(self) -> None:
        try:
            # Not `threading.Thread`: its start takes a lock, and a finalizer may emit a record while the lock is held.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:
            # No more threads can be started, or the interpreter is exiting: the next record or a flush delivers the
            # queue.
            self._is_drain_scheduled = False

    def _work(self) -> None:
        while not self._is_drained():
            if not self._deliver_queue(BATCH):
                world.pause(0.001)

    def _is_drained(self) -> bool:
        """Return whether the queue is empty or there is no consumer; if so, delivery is no longer scheduled."""
        with self._lock:
            if self._consumers and (self._waiting or self._unreported_drops):
                return False
            self._is_drain_scheduled, self._loop = False, None
            return True

    def _deliver_queue(self, limit: int) -> bool:
        """Deliver at most `limit` queued records; return False immediately if another thread is delivering.

        The queue is checked again after each turn, because other threads queue the records that they emit in the
        meantime.
        """
        remaining = limit
        while remaining > 0 and self._consumers and (self._waiting or self._unreported_drops):
            if self._turn is not None:
                return False
            me = object()
            try:
                with self._lock:
                    if self._turn is None:
                        self._turn, self._turn_thread = me, threading.get_ident()
                if self._turn is not me:
                    return False
                while remaining > 0 and (record := self._next()) is not None:
                    remaining -= 1
                    for consumer in self._consumers:
                        self._deliver(consumer, record)
            finally:
                if self._turn is me:
                    self._turn = None
        return True

    def _next(self) -> Record | None:
        """Remove and return the next queued record; None if there is none."""
        with self._lock:
            if not self._waiting and self._unreported_drops and self._consumers:
                self._queue_drop_reports()
            if not self._waiting:
                return None
            record, size = self._waiting.popleft()
            self._waiting_bytes -= size
            return record

    def _deliver(self, consumer: Consumer, record: Record) -> None:
        """Call a consumer with a record; remove the consumer if it raises an exception."""
        try:
            consumer(record)
        except Exception as error:
            with self._lock:
                self._removed += 1
                self._consumers = tuple(c for c in self._consumers if c is not consumer)
            with contextlib.suppress(Exception):  # describing the error may raise an exception
                warn_once(
                    f"a consumer of records failed and was removed: {error_kind(error)}. "
                    "The agent continues; what it recorded so far is kept.",
                    about=f"consumer {consumer!r}",
                )


def _is_redirected() -> bool:
    """Return whether the consumer of the runtime is the only one that receives records, as in a replay."""
    return process.runtime.consumer is not None and not process.runtime.continues_live


def session_of(record: Record) -> str:
    """Return the session that a record belongs to."""
    if isinstance(record, ModelExchange | ToolExchange | WorldExchange):
        return record.place.session_id
    if isinstance(record, SessionReturn):
        return record.end.session_id
    if isinstance(record, ObservedEffect):
        return record.fact.session_id
    return record.start.session_id if isinstance(record, SessionCall) else record.session_id


def _kind_of(record: Record) -> Label:
    """Return the kind under which a dropped record is counted."""
    fact = record.end if isinstance(record, SessionReturn) else record
    fact = fact.fact if isinstance(fact, ObservedEffect) else fact
    return _LABELS.get(type(fact)) or kind_of(fact)  # type: ignore[arg-type]


def _drop_report(session_id: str, kind: Label, is_exchange: bool, count: int) -> Event:
    """Return the event that reports dropped records."""
    return Event(
        session_id=session_id,
        interaction_id=None,
        lane=Label("main"),
        turn=None,
        at_ns=world.now(),
        kind=Label("drop"),
        label=kind,
        numbers={Label("count"): count, Label("exchanges"): count if is_exchange else 0},
    )


class State:
    """The sinks of this process."""

    def __init__(self) -> None:
        self.sinks: weakref.WeakSet[Sink] = weakref.WeakSet()


def _reset_in_child() -> None:
    """In a child process, reset all sinks, because their queues and counts belong to the parent."""
    for each in list(process.state(State).sinks):
        each._reset()


os.register_at_fork(after_in_child=_reset_in_child)

sink = Sink()
"""The sink of this process."""
