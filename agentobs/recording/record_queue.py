"""The record queue: takes records from the callers' threads, and counts what happens to each of them. The thread that
processes them pauses for other threads, less often if the queue is long.

Spans and events wait as tuples of their values, not as objects: of two objects that Python's garbage collector visits
for each record, one or none is left. Tens of thousands of waiting objects make it visit all objects of the process, and
every thread waits for that, 20 to 130 ms.
"""

from __future__ import annotations

import enum
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from agentobs import world
from agentobs.recording.facts.interpreter import session_of
from agentobs.recording.record_accounts import Accounts
from agentobs.recording.recorder_progress import Progress
from agentobs.records.exchanges import queue_bytes
from agentobs.records.facts import Event, SpanEnd, SpanStart
from agentobs.sink import Record

QUEUE_BYTES = 64 * 1024 * 1024
"""The maximum size of the queue. Records beyond it are dropped, and their sessions are incomplete."""

BUSY_NS = 500_000
"""How long the worker computes before it lets other threads run. Our choice: a tenth of the interpreter's own limit."""
LONG_QUEUE_BUSY_NS = 3_000_000
"""The same while the queue is long. Our choice: below the limit of the interpreter."""
LONG_QUEUE, VERY_LONG_QUEUE = 0.25, 0.35
"""The shares of the queue from which on the worker pauses less, and not at all. Our choice."""
PAUSE_SECONDS = 0.00005
"""How long it pauses then: long enough for a waiting thread to continue. Our choice."""
_LIMIT_SECONDS = 0.000512
"""The limit of the interpreter while the worker computes. It is recognized, because programs hardly set this value."""
_MICROSECOND = 1e-6
"""The resolution of the limit."""


class Command(enum.Enum):
    """A command for the worker."""

    TICK = "tick"
    """Check the journal, and write exchanges in progress."""
    STOP = "stop"
    """Close the segment and exit."""


QueuedRecord = tuple[Record, int, int]
"""A record, its approximate size in bytes, and the number of records that its session had sent at that point."""


_FLAT: tuple[type[Event | SpanStart | SpanEnd], ...] = (Event, SpanStart, SpanEnd)
"""The classes whose records wait as tuples of their values."""
_NUMBERS = {each: number for number, each in enumerate(_FLAT)}
_VALUES: tuple[Callable[[Record], tuple[Any, ...]], ...] = tuple(
    attrgetter(*(field.name for field in fields(each))) for each in _FLAT
)
_FlatRecord = tuple[Any, ...]
"""The number of a class in `_FLAT`, the other two values of a `QueuedRecord`, and the values of all fields: one tuple,
because the collector stops tracking a nested tuple later."""


class RecordQueue:
    """A queue between the callers' threads and the worker, bounded in bytes."""

    def __init__(self, start_worker: Callable[[], bool], *, durably: bool) -> None:
        """Create an empty queue.

        Args:
            start_worker: starts the worker when the first record arrives; returns whether it runs.
            durably: whether a record counts as processed only after it was synced.
        """
        # Reentrant, because the garbage collector may end an exchange, and thereby emit it, during another emit.
        self.lock = threading.RLock()
        """Guards `accounts` and the queue."""
        self.accounts = Accounts()
        self.progress = Progress(durably=durably)
        self.is_closed = False
        """Whether records are dropped because the recorder was closed."""
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Holds `QueuedRecord`, `_FlatRecord` and `Command`."""
        self._waiting_bytes = 0
        self._start_worker = start_worker
        self._has_worker = False

    def put(self, record: Record) -> str | None:
        """Count a record and queue it; return None, or the reason if it could not be queued. Never waits."""
        # Most records are facts and have this attribute; matching their classes would take ten times as long.
        session_id = getattr(record, "session_id", None) or session_of(record)
        size = queue_bytes(record)
        number = _NUMBERS.get(type(record))  # type: ignore[arg-type]
        values = () if number is None else _VALUES[number](record)
        with self.lock:
            session_records = self.accounts.count_received(session_id)
            if self.is_closed:
                return "closed"
            if self._waiting_bytes + size > QUEUE_BYTES:
                return "queue_full"
            if not self._has_worker:
                self._has_worker = self._start_worker()
                if not self._has_worker:
                    return "no_thread"
            self._waiting_bytes += size
            self.progress.accepted += 1
            self._items.put(
                (record, size, session_records)
                if number is None
                else (number, size, session_records, *values)
            )
        return None

    @property
    def fill(self) -> float:
        """The share of the queue that is in use, from 0 to 1."""
        return self._waiting_bytes / QUEUE_BYTES

    def send_tick(self) -> None:
        """Queue a tick for the worker."""
        self._items.put(Command.TICK)

    def close(self) -> None:
        """Drop all further records, and stop the worker after the queued records."""
        with self.lock:
            self.is_closed = True
            self._items.put(Command.STOP)

    def get(self) -> QueuedRecord | Command:
        """Wait for the next record or command; for the worker only."""
        item: QueuedRecord | Command = self._items.get()
        if isinstance(item, Command) or not isinstance(item[0], int):
            return item
        number, size, session_records, *values = item
        return _FLAT[number](*values), size, session_records

    def note_processed(self, size: int) -> None:
        """Note that a record of `size` bytes was written or dropped; for the worker only."""
        with self.lock:
            self._waiting_bytes -= size
        self.progress.note_processed()


class WorkerPauses:
    """Lets other threads run while the worker is busy.

    A thread that computes gives up the lock of the interpreter only after 5 ms (`sys.getswitchinterval`) if another
    thread waits for it. The event loop of the agent would wait this long each time.

    In the first place, the worker pauses between the steps of its work. Some steps take longer than half a millisecond.
    Therefore, while the worker computes or writes, the limit of the interpreter is half a millisecond as well. The
    limit applies to all threads, so the worker restores it before it pauses or waits for records: otherwise it would
    interrupt the other threads as often. A limit that is lower, or that the program sets meanwhile, is never changed. A
    program may save this limit and set it again later; then the next record restores the program's own limit.
    """

    def __init__(self, fill: Callable[[], float]) -> None:
        """Create it for one thread.

        The fuller the queue, the less the worker pauses, because a busy agent may add records faster than they are
        written. It never pauses if records may soon be dropped. It then writes a record every 35 us and releases the
        interpreter lock each time, but takes it again before another thread has woken up. That thread waits up to
        30 ms.

        Args:
            fill: returns the share of the queue that is in use.
        """
        self._fill = fill
        self._last_ns = 0
        self._limit: float | None = None
        """The limit to restore, in seconds; None if it was not lowered."""
        self._last_limit: float | None = None
        """The last limit that was lowered, in seconds."""

    def begin(self) -> None:
        """Lower the limit of the interpreter, because the worker computes from now on."""
        limit = sys.getswitchinterval()
        if _is_lowered(limit) and self._last_limit is not None:
            limit = self._last_limit
        if limit > _LIMIT_SECONDS + _MICROSECOND:
            # Noted before it is lowered, because another thread may fork in between.
            self._limit = self._last_limit = limit
            sys.setswitchinterval(_LIMIT_SECONDS)

    def end(self) -> None:
        """Restore the limit of the interpreter, unless the program has changed it."""
        limit = self._limit
        if limit is not None and _is_lowered(sys.getswitchinterval()):
            sys.setswitchinterval(limit)
        self._limit = None

    def __enter__(self) -> None:
        """Begin to compute."""
        self.begin()

    def __exit__(self, *_: object) -> None:
        """Stop computing."""
        self.end()

    def pause_if_due(self) -> None:
        """Release the interpreter lock if it was not released for half a millisecond, unless the interpreter itself
        releases it as often.
        """
        busy_ns = world.monotonic() - self._last_ns
        if busy_ns <= BUSY_NS:
            return
        lowered_from = self._limit
        limit = lowered_from or sys.getswitchinterval()
        if limit <= _LIMIT_SECONDS + _MICROSECOND:
            return
        fill = self._fill()
        if fill <= LONG_QUEUE:
            self.end()
            world.pause(PAUSE_SECONDS)
            self._last_ns = world.monotonic()
            if lowered_from is not None:
                self.begin()
        elif fill <= VERY_LONG_QUEUE and busy_ns > LONG_QUEUE_BUSY_NS:
            world.pause(PAUSE_SECONDS)
            self._last_ns = world.monotonic()


def _is_lowered(limit: float) -> bool:
    """Return whether a limit of the interpreter is the one that the worker sets."""
    return abs(limit - _LIMIT_SECONDS) < _MICROSECOND
