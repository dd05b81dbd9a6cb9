"""The sink: where every record goes, and the one dispatcher behind it.

Records may be emitted before anybody listens: a bounded queue keeps the first of them, and whoever attaches then
gets them in their order, in small batches, never in the call that attaches. From then on each record is handed over
where it is emitted. Emitting never raises and never waits for another thread: whoever finds somebody else at it
leaves the record to them. A consumer that raises is counted, reported once, and removed.

Nothing here is held while a consumer runs but a turn that nobody waits for, so that a record may be emitted from a
signal handler or while garbage is collected, and a process may fork at any time.
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

Record = Fact | ModelExchange | ToolExchange | WorldExchange | SessionCall | SessionReturn
Consumer = Callable[[Record], None]
"""Takes one record, quickly; whatever it raises takes it off the list."""

WAITING_RECORDS = 4096
"""How many records may wait for a first consumer. Our choice."""
WAITING_BYTES = 8 * 1024 * 1024
"""What may wait for a first consumer; it comes in the same breath, or not at all."""
BEHIND_BYTES = 64 * 1024 * 1024
"""What may wait behind that once somebody listens; beyond it a consumer is stuck. Our choice: as for the recorder."""
BATCH = 64
"""How many records are handed over at a time where somebody else's work goes on. Our choice."""
KNOWN_LOSSES = 1024
"""Of how many sessions and kinds it is kept apart what was dropped. Our choice."""
RETIRED_MAX = 10_000
"""Of how many sessions it is kept in mind that what recorded them has gone. Our choice."""

_LABELS = {
    ModelExchange: Label("attempt"),
    ToolExchange: Label("tool"),
    WorldExchange: Label("world_answer"),
    SessionCall: Label("session"),
}
"""The kinds of records that a session cannot be replayed without."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of the records of a sink."""

    emitted: int
    """Records that were handed in."""
    queued: int
    """Records that wait for a first consumer, or behind those that did."""
    dropped: int
    """Records that found the queue full, or closed, or came when what recorded their session had gone."""
    consumers_removed: int
    """Consumers that raised and were taken off."""
    refused_attaches: int = 0
    """Attempts to attach consumers where some were attached already."""
    dropped_by_kind: Mapping[str, int] = field(default_factory=dict)
    """The records that were dropped, by kind."""


class Sink:
    """A dispatcher to a fixed tuple of consumers, with a bounded queue in front of the first."""

    def __init__(self, capacity: int = WAITING_RECORDS) -> None:
        """Keep at most `capacity` records, and `WAITING_BYTES` of them, until a consumer is attached."""
        self._consumers: tuple[Consumer, ...] = ()
        self._aside: tuple[Consumer, ...] | None = None
        self._beside: Consumer | None = None
        self._capacity = capacity
        self._retired: dict[str, None] = {}
        """The sessions of which nothing more is taken, oldest first."""
        self._begin()
        _sinks.add(self)

    def _begin(self) -> None:
        """Start with nothing emitted: a new sink, or that of the child of a process."""
        # Reentrant, and never held while foreign code runs: a signal or the garbage collector may emit at any point.
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Record, int]] = deque()
        self._waiting_bytes, self._given_up = 0, False
        self._turn: object = None
        """Whose turn it is to hand over; nobody waits for it."""
        self._turn_thread = 0
        self._is_handed_on = False
        """Whether the event loop, or a thread, hands over what waits."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emitted = self._removed = self._refused = 0
        self._dropped: Counter[str] = Counter()
        self._untold: Counter[tuple[str, Label, bool]] = Counter()
        """What was dropped and not yet told: by session, kind, and whether the session is incomplete without it."""

    def emit(self, record: Record) -> None:
        """Hand a record to every consumer; behind those that wait, where some do."""
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
            # No call stands between the check and the release, so that no signal can come between.
            if self._turn is me:
                self._turn = None
        if not consumers:
            self._keep(record)
        if self._waiting or self._untold:
            self._go_on()

    async def settle(self, seconds: float) -> None:
        """Wait until what was emitted so far is safe with the consumers that can tell, at most so long each.

        The event loop goes on meanwhile. A consumer can tell that has a method `settle(seconds)` to await.
        """
        for consumer in self._consumers:
            if (settle := getattr(consumer, "settle", None)) is not None:
                await settle(seconds)

    def attach(self, *consumers: Consumer) -> bool:
        """Attach the consumers; what waited is handed to them soon, in its order. The first call wins.

        It is handed over by the running event loop, between other things, or else by a thread.

        Returns:
            Whether these are attached now: False, and counted, where some were already.
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
        """Hand over what waits, here and now; returns whether all of it is: not where nobody is there to take it.

        Where another thread is at it, that is waited for, at most so long. From within a consumer nothing is done, and
        nobody is waited for that may never come.
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
        """Keep nothing more and drop what waits, until a consumer is attached after all."""
        with self._lock:
            self._given_up = True
            while self._waiting:
                self._lose(self._waiting.popleft()[0])
            self._waiting_bytes = 0

    def detach(self) -> tuple[Consumer, ...]:
        """Take all consumers off, forget what waits, and return them."""
        with self._lock:
            consumers, self._consumers = self._consumers, ()
            self._waiting.clear()
            self._untold.clear()
            self._waiting_bytes, self._is_handed_on, self._loop = 0, False, None
            return consumers

    def retire(self, session_ids: Iterable[str]) -> None:
        """Take nothing more of these sessions, and count what comes: whoever attaches next has none of their starts."""
        with self._lock:
            self._retired |= dict.fromkeys(session_ids)
            while len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]

    @contextlib.contextmanager
    def redirect(self, consumer: Consumer) -> Iterator[None]:
        """Send every record to `consumer` alone, at once, for as long as the context is open."""
        before, self._aside = self._aside, (consumer,)
        try:
            yield
        finally:
            self._aside = before

    @contextlib.contextmanager
    def overheard(self, consumer: Consumer) -> Iterator[None]:
        """Let `consumer` hear every record at once, beside all others, for as long as the context is open."""
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
        """Let a record wait, behind the news of what was dropped before it, or drop it."""
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
        """Let the news of what was dropped wait in the place of it, as far as there is room."""
        for lost in list(self._untold):
            event = _drop(*lost, self._untold[lost])
            size = weight(event)
            if not self._has_room(size):
                return
            del self._untold[lost]
            self._waiting.append((event, size))
            self._waiting_bytes += size

    def _go_on(self) -> None:
        """See to it that what waits is handed over, where somebody listens.

        An emitter lends a hand where nobody is at it, or too much waits: so no burst is lost however busy the loop.
        """
        if not self._consumers:
            return
        loop = self._loop
        is_left = loop is not None and not loop.is_running()
        if self._is_handed_on and not is_left and len(self._waiting) < self._capacity:
            return
        if not self._hand_over(BATCH):
            # Now and then give way to who is at it: the queue grows faster than it is emptied.
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
        """Hand over one batch, and come back for the next one when others have had their turn."""
        if self._loop is loop:
            self._hand_over(BATCH)
            if not self._has_ended():
                loop.call_soon(self._tick, loop)

    def _begin_thread(self) -> None:
        try:
            # Not a `threading.Thread`: its start takes a lock, in the middle of which a finaliser may emit.
            _thread.start_new_thread(self._work, ())
        except RuntimeError:
            # No more threads, or the interpreter ends: the next record or a flush goes on.
            self._is_handed_on = False

    def _work(self) -> None:
        while not self._has_ended():
            if not self._hand_over(BATCH):
                world.pause(0.001)

    def _has_ended(self) -> bool:
        """Return whether nothing waits any more, or nobody listens: from now on records go straight through."""
        with self._lock:
            if self._consumers and (self._waiting or self._untold):
                return False
            self._is_handed_on, self._loop = False, None
            return True

    def _hand_over(self, most: int) -> bool:
        """Hand over what waits, at most so many records; returns False, at once, where another is at it.

        After each turn it looks again: what came while it was ours was left to us.
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
            with contextlib.suppress(Exception):  # even the text of a stranger's error may fail
                say_once(
                    f"a consumer of records failed and was removed: {error_kind(error)}. "
                    "The agent goes on; what it recorded until here is kept.",
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
    """Return what a record is called among those that were dropped."""
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


_sinks: weakref.WeakSet[Sink] = weakref.WeakSet()


def _forked() -> None:
    """In a child process begin anew: what waits is its parent's, who hands it over, and so are the counts."""
    for each in list(_sinks):
        each._begin()


os.register_at_fork(after_in_child=_forked)

sink = Sink()
"""The sink of this process."""
