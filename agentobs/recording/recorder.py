"""The recorder: the consumer of records that writes them down.

The caller's thread only puts a reference on a queue that is bounded in bytes. One worker thread has each
record taken apart into facts and content, without secrets, has them written, and hands the facts on to the
ledger and to the backends. Neither the writer nor a backend knows of the other.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from dataclasses import dataclass

from agentobs import world
from agentobs.errors import say_once
from agentobs.ledger import Meter
from agentobs.recording import wire
from agentobs.recording.home import Home
from agentobs.recording.interpreter import Interpretation, Interpreter, session_of
from agentobs.recording.options import Options
from agentobs.recording.writer import Writer
from agentobs.records.exchanges import is_beside, weight
from agentobs.records.facts import InteractionEnd, InteractionStart, SessionEnd, UsageRow
from agentobs.records.told import Backend, Told
from agentobs.sink import Record

QUEUE_BYTES = 64 * 1024 * 1024
"""What may wait to be written; beyond it exchanges are dropped and their session is incomplete."""
BACKENDS_SECONDS = 0.25
"""How long all backends together may take to send what they hold, when the recorder is closed. Our choice."""
SYNC_SECONDS = 0.2
"""How often what was written is made to survive a power loss."""


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """What became of the records that the recorder was given."""

    written: int
    """Records that are in the journal."""
    dropped: int
    """Records that were not written: the queue was full, or the disk refused."""
    waiting: int
    """Records in the queue."""


class _Stop:
    """Ends the worker."""


class Recorder:
    """Writes the records of one process into segments of one home."""

    def __init__(self, home: Home, options: Options | None = None) -> None:
        """Write into `home`; the first segment is created with the first record."""
        self.home = home
        self.options = options or Options()
        self._interpreter = Interpreter(home.key())
        self._writer = Writer(home)
        self._backends = self.options.backends
        self._meters: dict[str, Meter] = {}
        self._seen_results: set[tuple[str, int]] = set()
        self._removed = 0
        self._begin()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forked)

    def _begin(self) -> None:
        """Start with nothing written: a new process, or the child of one."""
        self._queue: queue.SimpleQueue[tuple[Record | _Stop, int]] = queue.SimpleQueue()
        # Reentrant: the garbage collector may end an exchange, and so hand it in, while one is handed in.
        self._lock = threading.RLock()
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._going_on: set[str | None] = set()
        """Interactions of agents in the background that have not ended, and may outlive their session."""
        self._waiting_bytes = self._given = self._handled = 0
        self._written = self._dropped = 0
        self._closed = False

    def __call__(self, record: Record) -> None:
        """Take one record; never waits, never raises.

        With the end of a session come its exchanges that have not ended: nothing of it follows its end, but for
        what its agents in the background go on to do.
        """
        if isinstance(record, InteractionStart) and is_beside(record.lane):
            self._going_on.add(record.interaction_id)
        elif isinstance(record, InteractionEnd):
            self._going_on.discard(record.interaction_id)
        elif isinstance(record, SessionEnd):
            for exchange in wire.take_open(record.session_id, but=self._going_on):
                self(exchange)
        size = weight(record)
        if self._waiting_bytes + size > QUEUE_BYTES or self._closed:
            self._drop(session_of(record))
            return
        with self._lock:
            self._waiting_bytes += size
            self._given += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="agentobs-recorder", daemon=True
                )
                self._thread.start()
        self._queue.put((record, size))

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until everything given so far is written, at most so long; returns whether it is."""
        target = self._given
        with self._progress:
            return self._progress.wait_for(lambda: self._handled >= target, timeout=seconds)

    def close(self, seconds: float = 5.0) -> bool:
        """Write what waits and seal the segment; returns whether everything was written in time.

        Exchanges that have not ended are written as they stand, cancelled.
        """
        if self._closed:
            return True
        for exchange in wire.take_open():
            self(exchange)
        done = self.flush(seconds)
        self._closed = True
        if self._thread is not None:
            self._queue.put((_Stop(), 0))
            self._thread.join(seconds)
        self._close_backends()
        return done

    def _close_backends(self) -> None:
        """Close each backend that can be, within an even share of the time that is left."""
        closing = [close for each in self._backends if (close := getattr(each, "close", None))]
        until = world.monotonic() + int(BACKENDS_SECONDS * 1e9)
        for left, close in zip(range(len(closing), 0, -1), closing, strict=True):
            try:
                close(max(until - world.monotonic(), 0) / 1e9 / left)
            except Exception as error:
                self._warn_of(close, error)

    def meter(self, session_id: str) -> Meter:
        """Return what adds up a session's costs while it is recorded."""
        if session_id not in self._meters:
            meter = self._meters.setdefault(session_id, Meter(seen=self._seen_results))
            if lost := self._interpreter.lost(session_id):
                meter.lose(lost)
        return self._meters[session_id]

    def statistics(self) -> RecorderStatistics:
        """Return the counts so far."""
        return RecorderStatistics(self._written, self._dropped, self._given - self._handled)

    def _forked(self) -> None:
        """In a child process: leave the parent's segment alone and start with an own one."""
        wire.forget_open()
        for meter in self._meters.values():
            meter.forked()
        self._begin()
        self._interpreter.forked()
        self._writer.abandon()

    def _work(self) -> None:
        dirty = False
        while True:
            try:
                record, size = self._queue.get(timeout=SYNC_SECONDS if dirty else None)
            except queue.Empty:
                dirty = self._sync()
                continue
            if isinstance(record, _Stop):
                self._seal()
                return
            self._handle(record)
            dirty = True
            with self._progress:
                self._waiting_bytes -= size
                self._handled += 1
                self._progress.notify_all()

    def _handle(self, record: Record) -> None:
        """Write a record or count it as dropped; nothing that is raised here may end the worker."""
        try:
            self._take(record)
            self._written += 1
        except BaseException as error:
            self._drop(session_of(record), error)

    def _take(self, record: Record) -> None:
        """Write what a record says, count its usage, and hand its facts on."""
        if self._writer.turn():
            self._interpreter.forget_bodies()
        interpretation = self._interpreter.interpret(record)
        if not interpretation.is_whole:
            self._lose(interpretation.session_id)
        try:
            self._writer.write(interpretation)
        except BaseException:
            self._interpreter.forget_bodies()
            raise
        finally:
            self._hand_on(interpretation)
        if isinstance(record, SessionEnd):
            self._meters.pop(record.session_id, None)

    def _hand_on(self, interpretation: Interpretation) -> None:
        meter = self._meters.get(interpretation.session_id)
        for told in interpretation.told:
            if meter is not None and isinstance(told.fact, UsageRow):
                meter.add_facts((told.fact,))
            for backend in self._backends:
                self._give(backend, told)

    def _give(self, backend: Backend, told: Told) -> None:
        try:
            backend(told)
        except Exception as error:
            self._backends = tuple(each for each in self._backends if each is not backend)
            self._removed += 1
            self._warn_of(backend, error)

    def _warn_of(self, backend: object, error: Exception) -> None:
        with contextlib.suppress(Exception):  # even the text of a stranger's error may fail
            say_once(
                f"a backend failed and was removed: {type(error).__name__}. The agent and its recording go on.",
                about=f"backend {id(backend)}",
            )

    def _seal(self) -> None:
        try:
            self._writer.seal()
        except Exception as error:
            self._warn(error)

    def _sync(self) -> bool:
        try:
            self._writer.sync()
        except Exception as error:
            self._warn(error)
        return False

    def _drop(self, session_id: str, error: BaseException | None = None) -> None:
        self._dropped += 1
        self._lose(session_id)
        self._warn(error)

    def _lose(self, session_id: str) -> None:
        """Remember that something of a session is not in the journal, nor in what it is known to have spent."""
        self._interpreter.lose(session_id)
        if meter := self._meters.get(session_id):
            meter.lose()

    def _warn(self, error: BaseException | None) -> None:
        with contextlib.suppress(Exception):  # even the text of an error may fail
            why = repr(error) if error else "more was recorded than the disk could take"
            say_once(
                f"a record was not written to {self.home.path}: {why}. The agent goes on; the session "
                "is marked incomplete and cannot be frozen.",
                about=f"not written to {self.home.path}",
            )
