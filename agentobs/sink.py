"""The sink: the destination of every record, and its dispatcher.

Records may be emitted before a consumer is attached. A bounded queue keeps the first of them, and the first consumer
then receives them in order, in small batches, never inside the call that attaches. From then on, each record is
delivered where it is emitted. Emitting never raises and never waits for another thread: if another thread is
delivering, the record is left to it. A consumer that raises is counted, reported once, and removed.

While a consumer runs, no lock is held except a delivery turn that nothing waits for. A record may therefore be emitted
from a signal handler or during garbage collection, and a process may fork at any time.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agentobs import world
from agentobs.errors import error_kind, say_once
from agentobs.records.event_catalog import kind_of
from agentobs.records.exchanges import (
    ModelExchange,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
    weight,
)
from agentobs.records.facts import Event, Fact
from agentobs.records.labels import Label
from agentobs.runtime import process

Record = Fact | ModelExchange | ToolExchange | WorldExchange | SessionCall | SessionReturn
Consumer = Callable[[Record], None]
"""Takes one record, quickly; it is removed if it raises."""

WAITING_RECORDS = 4096
"""Maximum records that wait for a first consumer. Our choice."""
WAITING_BYTES = 8 * 1024 * 1024
"""Maximum bytes that wait for a first consumer, which is attached right away or not at all."""
BEHIND_BYTES = 64 * 1024 * 1024
"""Maximum bytes that wait behind them once a consumer is attached; beyond that, the consumer is
stuck. Our choice: as for the recorder.
"""
BATCH = 64
"""How many records are delivered at a time while other work continues. Our choice."""
KNOWN_LOSSES = 1024
"""For how many sessions and kinds dropped records are counted separately. Our choice."""
RETIRED_MAX = 10_000
"""How many sessions whose recorder is gone are remembered. Our choice."""

_LABELS = {
    ModelExchange: Label("attempt"),
    ToolExchange: Label("tool"),
    WorldExchange: Label("world_answer"),
    SessionCall: Label("session"),
}
"""The kinds of records that a replay of a session requires."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of the records of a sink."""

    emitted: int
    """Records that were emitted."""
    queued: int
    """Records that wait for a first consumer, or behind those that do."""
    dropped: int
    """Records that were dropped because the queue was full or closed, or the recorder of their session was gone."""
    consumers_removed: int
    """Consumers that raised and were removed."""
    refused_attaches: int = 0
    """Failed attempts to attach consumers because others were attached."""
    dropped_by_kind: Mapping[str, int] = field(default_factory=dict)
    """The dropped records, by kind."""


class Sink:
    """A dispatcher to a fixed tuple of consumers, with a bounded queue before the first one is attached."""

    def __init__(self, capacity: int = WAITING_RECORDS) -> None:
        """Keep at most `capacity` records, and `WAITING_BYTES`, until a consumer is attached."""
        state = process.part(State)
        self._consumers: tuple[Consumer, ...] = ()
        self._aside: tuple[Consumer, ...] | None = None
        self._beside: Consumer | None = None
        self._capacity = capacity
        self._retired: dict[str, None] = {}
        """Sessions whose further records are dropped, oldest first."""
        self._begin()
        state.sinks.add(self)

    def _begin(self) -> None:
        """Reset all state, for a new sink or in a forked child process."""
        # Reentrant, and never held while foreign code runs: a signal or the garbage collector may
        # emit at any point.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Record, int]] = deque()
        self._waiting_bytes, self._given_up = 0, False
        self._turn: object = None
        """The token of the current delivery turn; nothing waits for it."""
        self._turn_thread = 0
        self._is_handed_on = False
        """Whether the event loop, or a thread, delivers the queue."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emitted = self._removed = self._refused = 0
        self._dropped: Counter[str] = Counter()
        self._untold: Counter[tuple[str, Label, bool]] = Counter()
        """Dropped records that were not reported yet: by session, kind, and whether the session is
        incomplete without them.
        """

    def emit(self, record: Record) -> None:
        """Deliver a record to every consumer, or queue it if others are queued."""
        aside = self._aside
        if self._beside is not None:
            self._give(self._beside, record)
        if aside is not None:
            self._emitted += 1
            for consumer in aside:
                self._give(consumer, record)
            return
        if self._retired and session_of(record) in self._retired:
            self._refuse(record)
            return
        consumers: tuple[Consumer, ...] = ()
        me = object()
        try:
            with self._lock:
                self._emitted += 1
                if self._turn is None and not self._waiting and not self._untold:
                    consumers = self._consumers
                    if consumers:
                        self._turn, self._turn_thread = me, threading.get_ident()
            for consumer in consumers:
                self._give(consumer, record)
        finally:
            # There is no call between the check and the release, so no signal can interrupt.
            if self._turn is me:
                self._turn = None
        if not consumers:
            self._keep(record)
        if self._waiting or self._untold:
            self._go_on()

    async def settle(self, seconds: float) -> None:
        """Wait until everything emitted so far is durable, for consumers that support it, up to
        `seconds` each.

        The event loop continues meanwhile. A consumer supports it with an async method
        `settle(seconds)`.
        """
        for consumer in self._consumers:
            if (settle := getattr(consumer, "settle", None)) is not None:
                await settle(seconds)

    def attach(self, *consumers: Consumer) -> bool:
        """Attach the consumers and schedule the delivery of the queue, in order. Only the first call succeeds.

        The running event loop delivers in between other work, or else a thread does.

        Returns:
            Whether these consumers are now attached: False, and counted, if others already were.
        """
        with self._lock:
            if self._consumers or self._aside is not None or not consumers:
                self._refused += 1
                return False
            self._consumers, self._given_up = consumers, False
            if not self._waiting and not self._untold:
                return True
            self._is_handed_on = True
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._begin_thread()
        else:
            self._loop.call_soon(self._tick, self._loop)
        return True

    def flush(self, seconds: float = 5.0) -> bool:
        """Deliver the queue now; return whether it is empty, which it is not if there is no consumer.

        If another thread is delivering, wait for it up to `seconds`. Inside a consumer this does
        nothing, because the wait might never end.
        """
        until = world.monotonic() + int(seconds * 1e9)
        while self._consumers and (self._waiting or self._untold or self._turn is not None):
            if self._turn is not None:
                if self._turn_thread == threading.get_ident() or world.monotonic() > until:
                    return False
                world.pause(0.001)
            self._hand_over(BATCH)
        return not (self._waiting or self._untold)

    def give_up(self) -> None:
        """Drop the queue and all further records, until a consumer is attached after all."""
        with self._lock:
            self._given_up = True
            while self._waiting:
                self._lose(self._waiting.popleft()[0])
            self._waiting_bytes = 0

    def detach(self) -> tuple[Consumer, ...]:
        """Remove all consumers, clear the queue, and return the consumers."""
        with self._lock:
            consumers, self._consumers = self._consumers, ()
            self._waiting.clear()
            self._untold.clear()
            self._waiting_bytes, self._is_handed_on, self._loop = 0, False, None
            return consumers

    def retire(self, session_ids: Iterable[str]) -> None:
        """Drop and count further records of these sessions, because the next consumer would not have their starts."""
        with self._lock:
            self._retired |= dict.fromkeys(session_ids)
            while len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]

    @contextlib.contextmanager
    def redirect(self, consumer: Consumer) -> Iterator[None]:
        """Send every record directly to `consumer` only, while the context is open."""
        before, self._aside = self._aside, (consumer,)
        try:
            yield
        finally:
            self._aside = before

    @contextlib.contextmanager
    def overheard(self, consumer: Consumer) -> Iterator[None]:
        """Send every record directly to `consumer` as well, while the context is open."""
        before, self._beside = self._beside, consumer
        try:
            yield
        finally:
            self._beside = before

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        with self._lock:
            return Statistics(
                self._emitted,
                len(self._waiting),
                self._dropped.total(),
                self._removed,
                self._refused,
                dict(self._dropped),
            )

    def _keep(self, record: Record) -> None:
        """Queue a record, after a report of dropped ones if any, or drop it."""
        size = weight(record)
        with self._lock:
            if self._untold and self._has_room(size):
                self._tell_dropped()
            if self._has_room(size):
                self._waiting.append((record, size))
                self._waiting_bytes += size
            else:
                self._lose(record)

    def _has_room(self, size: int) -> bool:
        if self._consumers:
            return self._waiting_bytes + size <= BEHIND_BYTES
        if self._given_up or len(self._waiting) >= self._capacity:
            return False
        return self._waiting_bytes + size <= WAITING_BYTES

    def _refuse(self, record: Record) -> None:
        kind = _kind_of(record)
        with self._lock:
            self._emitted += 1
            self._dropped[str(kind)] += 1

    def _lose(self, record: Record) -> None:
        is_exchange = type(record) in _LABELS
        kind = _kind_of(record)
        self._dropped[str(kind)] += 1
        lost = session_of(record), kind, is_exchange
        if lost in self._untold or len(self._untold) < KNOWN_LOSSES:
            self._untold[lost] += 1

    def _tell_dropped(self) -> None:
        """Queue reports of dropped records, as far as there is room."""
        for lost in list(self._untold):
            event = _drop(*lost, self._untold[lost])
            size = weight(event)
            if not self._has_room(size):
                return
            del self._untold[lost]
            self._waiting.append((event, size))
            self._waiting_bytes += size

    def _go_on(self) -> None:
        """Schedule a drain of the queue if a consumer is attached.

        The emitter helps if nothing is delivering, or the queue is too long, so no burst is lost even if the loop is
        busy.
        """
        if not self._consumers:
            return
        loop = self._loop
        is_left = loop is not None and not loop.is_running()
        if self._is_handed_on and not is_left and len(self._waiting) < self._capacity:
            return
        if not self._hand_over(BATCH):
            # Occasionally yield to the delivering thread, because the queue grows faster than it is
            # emptied.
            if len(self._waiting) >= self._capacity and self._emitted % BATCH == 0:
                world.pause(0)
        elif self._waiting or self._untold:
            with self._lock:
                begins = is_left or not self._is_handed_on
                self._is_handed_on = True
            if begins:
                self._loop = None
                self._begin_thread()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver one batch, and reschedule for the next one."""
        if self._loop is loop:
            self._hand_over(BATCH)
            if not self._has_ended():
                loop.call_soon(self._tick, loop)

    def _begin_thread(self) -> None:
        try:
            # Not `threading.Thread`: its start takes a lock, during which a finalizer may emit.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:
            # No more threads, or the interpreter is exiting: the next record or a flush continues.
            self._is_handed_on = False

    def _work(self) -> None:
        while not self._has_ended():
            if not self._hand_over(BATCH):
                world.pause(0.001)

    def _has_ended(self) -> bool:
        """Return whether the queue is empty or there is no consumer; from then on records are delivered directly."""
        with self._lock:
            if self._consumers and (self._waiting or self._untold):
                return False
            self._is_handed_on, self._loop = False, None
            return True

    def _hand_over(self, most: int) -> bool:
        """Deliver up to `most` queued records; return False immediately if another thread is
        delivering.

        After each turn it checks again, because records emitted during the turn are left to it.
        """
        left = most
        while left > 0 and self._consumers and (self._waiting or self._untold):
            if self._turn is not None:
                return False
            me = object()
            try:
                with self._lock:
                    if self._turn is None:
                        self._turn, self._turn_thread = me, threading.get_ident()
                if self._turn is not me:
                    return False
                while left > 0 and (record := self._next()) is not None:
                    left -= 1
                    for consumer in self._consumers:
                        self._give(consumer, record)
            finally:
                if self._turn is me:
                    self._turn = None
        return True

    def _next(self) -> Record | None:
        with self._lock:
            if not self._waiting and self._untold and self._consumers:
                self._tell_dropped()
            if not self._waiting:
                return None
            record, size = self._waiting.popleft()
            self._waiting_bytes -= size
            return record

    def _give(self, consumer: Consumer, record: Record) -> None:
        try:
            consumer(record)
        except Exception as error:
            with self._lock:
                self._removed += 1
                self._consumers = tuple(c for c in self._consumers if c is not consumer)
                if self._aside is not None:
                    self._aside = tuple(c for c in self._aside if c is not consumer)
            with contextlib.suppress(Exception):  # even the text of a foreign error may fail
                say_once(
                    f"a consumer of records failed and was removed: {error_kind(error)}. "
                    "The agent continues; what it recorded so far is kept.",
                    about=f"consumer {consumer!r}",
                )


def session_of(record: Record) -> str:
    """Return the session that a record belongs to."""
    if isinstance(record, ModelExchange | ToolExchange | WorldExchange):
        return record.place.session_id
    if isinstance(record, SessionReturn):
        return record.end.session_id
    return record.start.session_id if isinstance(record, SessionCall) else record.session_id


def _kind_of(record: Record) -> Label:
    """Return the name under which a dropped record is counted."""
    fact = record.end if isinstance(record, SessionReturn) else record
    return _LABELS.get(type(fact)) or kind_of(fact)  # type: ignore[arg-type]


def _drop(session_id: str, kind: Label, is_exchange: bool, count: int) -> Event:
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
    """The sinks of this process, which a child process resets."""

    def __init__(self) -> None:
        self.sinks: weakref.WeakSet[Sink] = weakref.WeakSet()


def _forked() -> None:
    """In a child process, reset the state: the queue and the counts belong to the parent."""
    for each in list(process.part(State).sinks):
        each._begin()


os.register_at_fork(after_in_child=_forked)

sink = Sink()
"""The sink of this process."""
