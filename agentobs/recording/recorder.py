"""The recorder: the consumer of records that writes them to the journal.

The caller's thread only puts a reference on a queue that is bounded in bytes. One worker thread splits each record into
facts and content, removes secrets, has them written, and passes the facts to the ledger and the backends. The writer
and the backends do not know each other. A second thread keeps time: it syncs what was written, and lets the worker
write the known parts of exchanges that have not ended.

If the operating system refuses a write, the recording of that record's session ends: its later records are
counted, and still passed on. Other sessions continue when something can be written again; the records that were
dropped in between are reported first.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentobs import world
from agentobs.errors import HomeError, error_kind, say_once
from agentobs.ledger import Meter
from agentobs.recording.facts.interpreter import Interpretation, Interpreter, session_of
from agentobs.recording.journal.home import Home
from agentobs.recording.options import Options
from agentobs.recording.record_accounts import OTHERS, Accounts, kind_of, reason_of
from agentobs.recording.recorder_progress import Progress
from agentobs.recording.segment_writer import Writer
from agentobs.recording.span_sweeper import Sweeper
from agentobs.recording.vault.encryption import Sealer, content_key
from agentobs.recording.wire import transport
from agentobs.records.backend import Backend, Told
from agentobs.records.exchanges import SessionReturn, is_beside, weight
from agentobs.records.facts import Gap, InteractionEnd, InteractionStart, SessionEnd, UsageRow
from agentobs.redaction import Redactor
from agentobs.runtime import process
from agentobs.sink import Record

QUEUE_BYTES = 64 * 1024 * 1024
"""The maximum size of the queue; beyond it exchanges are dropped and their session is incomplete."""
BACKENDS_SECONDS = 0.25
"""How long all backends together may take to send what they hold when the recorder is closed. Our choice."""
SYNC_SECONDS = 0.2
"""How often written data is synced, exchanges in progress are written, and a failed disk is tried again."""
ALWAYS_SECONDS = 0.05
"""The longest wait for the sync at the end of a response, with `Options.sync="always"`."""
STUCK_SECONDS = 2.0
"""How long a call to the operating system may take at process exit before it counts as hanging. Our choice: on a busy
machine one call may take a second, and the waiting records are worth that time.
"""
STOPPED_MAX = 10_000
"""How many sessions with a stopped recording are remembered."""


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """What happened to the records that the recorder received: received = written + dropped + waiting."""

    written: int
    """Records that are in the journal."""
    dropped: int
    """Records that were not written because the queue was full or the disk failed."""
    waiting: int
    """Records in the queue."""
    given: int
    """Records that were received."""
    reasons: Mapping[str, int]
    """Why records were dropped, and how many for each reason: the name of the operating system's error, or a word; see
    the table `gaps`.
    """
    unsynced: int
    """How often a sync failed."""
    unsealed: int
    """Segments that could not be closed properly; what was written to them is there."""
    late: int
    """Waits that ended before the expected records were written."""
    unredacted: int = 0
    """Texts that could not be searched for secrets; they are replaced by `[REDACTION FAILED]`."""
    backends_removed: int = 0
    """Backends that raised an exception and were removed."""


def _seal_key(options: Options) -> bytes | None:
    """Return the key that content is encrypted with; if it cannot be used, nothing is recorded.

    Raises:
        UsageError: it cannot be used.
    """
    key = content_key(options.seal_key)
    if key is not None:
        Sealer(key, "")
    return key


class _Stop:
    """Ends the worker."""


class _Tick:
    """Makes the worker write exchanges in progress."""


_Item = tuple[Record, int, int] | _Stop | _Tick
"""A record with its size and the number of records that its session had at that point, or a command for the worker."""


class Recorder:
    """Writes the records of one process into segments of one home."""

    def __init__(self, home: Home, options: Options | None = None) -> None:
        """Record into `home`; the first segment is created with the first record."""
        self.home = home
        self.options = options or Options()
        self._interpreter = Interpreter(home.key(), self.options.redactors, self.options.sampling)
        key = _seal_key(self.options)
        self._writer = Writer(
            home, self.options.files, sync=self.options.sync != "process", key=key
        )
        self.is_sealed = key is not None
        """Whether content is sealed."""
        self._backends = self.options.backends
        self._meters: dict[str, Meter] = {}
        self._seen_results: set[tuple[str, int]] = set()
        self._removed = 0
        self._sweeper = Sweeper(self.options)
        self._begin()
        self._is_always = self.options.sync == "always"
        process.attendant = self
        process.wait_seconds = ALWAYS_SECONDS if self._is_always else 0.0
        atexit.register(self.close)
        os.register_at_fork(after_in_child=_weakly(self, "_forked"))

    def _begin(self) -> None:
        """Start with nothing written, in a new process or a forked child."""
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        # Reentrant, because the garbage collector may end an exchange, and thereby emit it, during another emit.
        self._lock = threading.RLock()
        self._progress = Progress(durably=self.options.sync == "always")
        self._accounts = Accounts()
        self._thread: threading.Thread | None = None
        self._going_on: set[str | None] = set()
        """Interactions of background agents that have not ended and may outlive their session."""
        self._waiting_bytes = 0
        self._unsynced = self._late = 0
        self._stopped: dict[str, None] = {}
        """The sessions whose recording has ended because one of their records could not be written."""
        self._refusal: str | None = None
        """The last error of the operating system, until a write succeeds."""
        self._probe_ns = 0
        self._is_fresh = self._is_dirty = self._is_doubtful = self._is_idle = self._is_ticking = (
            False
        )
        self._is_gone = False
        """Whether the segment was deleted and no record has arrived since that needs a new one."""
        self._stir, self._over = threading.Event(), threading.Event()
        self._closed = False

    def __call__(self, record: Record) -> None:
        """Accept one record; never waits, never raises.

        The end of a session also ends its exchanges in progress. No record of a session follows its end, except
        those of its background agents.
        """
        try:
            if isinstance(record, InteractionStart) and is_beside(record.lane):
                self._going_on.add(record.interaction_id)
            elif isinstance(record, InteractionEnd):
                self._going_on.discard(record.interaction_id)
            elif isinstance(record, SessionEnd | SessionReturn):
                for exchange in transport.take_open(session_of(record), but=self._going_on):
                    self(exchange)
            self._take_in(record)
        except Exception as error:
            self._warn(error)

    def opened(self) -> None:
        """Note that a request was sent; see `wire.Attendant`."""
        if self._is_idle:
            self._stir.set()

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until all records so far are written, at most `seconds`; return whether they are.

        With `Options.sync="always"` they are durable then.
        """
        before = self._unsynced
        is_there = self._progress.wait(seconds)
        return is_there and not (self._is_always and self._unsynced != before)

    def wait(self, seconds: float) -> bool:
        """Like `flush`, and count a wait that was too short."""
        return self._counted(self.flush(seconds))

    async def settle(self, seconds: float) -> bool:
        """Like `wait`, without blocking an event loop."""
        return self._counted(await self._progress.settle(seconds))

    def close(self, seconds: float = 5.0) -> bool:
        """Write waiting records and seal the segment; return whether everything was written in time.

        Exchanges in progress are written as cancelled. If the operating system does not respond, nothing waits for it.
        """
        if self._closed:
            return True
        for exchange in transport.take_open():
            self(exchange)
        done = self._progress.wait(seconds, give_up=self._is_stuck)
        with self._lock:
            self._closed = True
            self._queue.put(_Stop())
        self._end(seconds)
        self._close_backends()
        atexit.unregister(self.close)
        if process.attendant is self:
            process.attendant, process.wait_seconds = None, 0.0
        if not done:
            self._say_unwritten()
        return done

    def _end(self, seconds: float) -> None:
        """End both threads, after the worker has sealed its segment, and wait for that."""
        if self._thread is None:
            return
        until = world.monotonic() + int(seconds * 1e9)
        while self._thread.is_alive() and world.monotonic() < until and not self._is_stuck():
            self._thread.join(0.01)
        self._over.set()
        self._stir.set()

    def _close_backends(self) -> None:
        """Close each backend that can be closed, within an equal share of the remaining time."""
        closing = [close for each in self._backends if (close := getattr(each, "close", None))]
        until = world.monotonic() + int(BACKENDS_SECONDS * 1e9)
        for left, close in zip(range(len(closing), 0, -1), closing, strict=True):
            try:
                close(max(until - world.monotonic(), 0) / 1e9 / left)
            except Exception as error:
                self._warn_of(close, error)

    def join(self, session_id: str, content: str) -> None:
        """Accept records of a session that another process has started; `content` says where its content may go."""
        self._interpreter.join(session_id, content)

    @property
    def redactor(self) -> Redactor:
        """Removes secrets from everything that this process stores."""
        return self._interpreter.redactor

    def meter(self, session_id: str) -> Meter:
        """Return the meter that adds up the costs of a session while it is recorded."""
        if session_id not in self._meters:
            meter = self._meters.setdefault(session_id, Meter(seen=self._seen_results))
            if lost := self._interpreter.lost(session_id):
                meter.lose(lost)
        return self._meters[session_id]

    def statistics(self) -> RecorderStatistics:
        """Return the counts so far."""
        with self._lock:
            accounts, dropped = self._accounts, sum(self._accounts.dropped.values())
            return RecorderStatistics(
                accounts.written,
                dropped,
                accounts.given - accounts.written - dropped,
                accounts.given,
                accounts.by_reason(),
                self._unsynced,
                self._writer.unsealed,
                self._late,
                self._interpreter.redactor.failed,
                self._removed,
            )

    def is_stopped(self, session_id: str) -> bool:
        """Return whether the recording of a session has ended because a record could not be written."""
        return session_id in self._stopped

    def _take_in(self, record: Record) -> None:
        """Count a record, and put it on the queue if there is room."""
        # Most records are facts: this check costs a tenth of a look at the class.
        session_id = getattr(record, "session_id", None) or session_of(record)
        size = weight(record)
        with self._lock:
            given = self._accounts.give(session_id)
            if self._closed:
                reason = "closed"
            elif self._waiting_bytes + size > QUEUE_BYTES:
                reason = "queue_full"
            elif self._thread is None and not self._start():
                reason = "no_thread"
            else:
                self._waiting_bytes += size
                self._progress.taken_in += 1
                self._queue.put((record, size, given))
                return
        self._drop(record, reason)

    def _start(self) -> bool:
        """Start the two threads with the first record; return whether a worker exists now."""
        try:
            self._thread = _started(self._work, "agentobs-recorder")
            _started(self._keep_time, "agentobs-sync")
        except RuntimeError:  # no thread is to be had, such as when the interpreter ends
            return self._thread is not None
        _at_end_of_pools(self)
        return True

    def _forked(self) -> None:
        """In a child process: leave the parent's segment alone and start a new one."""
        transport.forget_open()
        for meter in self._meters.values():
            meter.forked()
        closed = self._closed
        self._begin()
        self._closed = closed
        self._interpreter.forked()
        self._writer.abandon()

    # The worker's thread.

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, _Stop):
                self._guarded(self._finish)
                return
            if isinstance(item, _Tick):
                self._is_ticking = False
                self._guarded(self._look)
                continue
            record, size, given = item
            self._handle(record, given)
            with self._lock:
                self._waiting_bytes -= size
            self._progress.handle()
            self._dirty()

    def _handle(self, record: Record, given: int) -> None:
        """Write a record or count it as dropped; no exception may end the worker."""
        error: BaseException | None = None
        try:
            reason = self._take(record, given)
        except BaseException as raised:
            reason, error = reason_of(raised), raised
        if reason is not None:
            self._drop(record, reason, error)
        else:
            with self._lock:
                self._accounts.write(*_counted_as(record))
        if isinstance(record, SessionEnd | SessionReturn):
            self._forget(session_of(record))

    def _take(self, record: Record, given: int) -> str | None:
        """Write a record, count its usage, and pass its facts on; return why it was not written."""
        session_id = session_of(record)
        reason = self._refused_before(record)
        if isinstance(record, SessionEnd | SessionReturn) and reason is None:
            if not self._writer.is_in_place():
                self._leave()
            reason = self._tell_gaps(session_id)
            written = self._accounts.written_of(session_id) + 1
            record = _with_counts(record, given, written)
        interpretation = self._interpreter.interpret(record)
        if not interpretation.is_whole:
            self._lose(interpretation.session_id)
        try:
            return reason or self._written(interpretation)
        finally:
            self._hand_on(interpretation)

    def _refused_before(self, record: Record) -> str | None:
        """Return why a record must not be written, before it is processed; ensure that there is a segment otherwise."""
        session_id = session_of(record)
        if session_id in self._stopped and not isinstance(record, SessionEnd | SessionReturn):
            return "stopped"
        if self._refusal is not None and world.monotonic() < self._probe_ns:
            self._stop(session_id)
            return self._refusal
        try:
            self._turn()
        except (OSError, HomeError) as error:
            return self._refuse(error, session_id)
        return None

    def _turn(self) -> None:
        """Ensure that there is a segment; records in a new one do not refer to the previous one."""
        if self._is_doubtful:
            self._is_doubtful = False
            self._writer.seal()
        if self._writer.turn():
            self._interpreter.forget_bodies()
            self._is_gone = False
            with self._lock:
                self._accounts.begin_segment()

    def _written(self, interpretation: Interpretation) -> str | None:
        """Write the facts and content of a record; return why that was not possible."""
        try:
            self._writer.write(interpretation)
        except OSError as error:
            return self._refuse(error, interpretation.session_id)
        except BaseException:
            self._interpreter.forget_bodies()
            raise
        self._refusal, self._is_fresh = None, True
        return None

    def _refuse(self, error: Exception, session_id: str | None = None) -> str:
        """Note that the operating system refused a write and stop recording the session; return the reason."""
        self._refusal = reason_of(error)
        self._probe_ns = world.monotonic() + int(SYNC_SECONDS * 1e9)
        self._warn(error)
        if session_id is not None:
            self._stop(session_id)
        if self._writer.is_torn():
            for each in self._writer.started_in():
                self._stop(each)
            self._writer.retire()
        self._interpreter.forget_bodies()
        return self._refusal

    def _stop(self, session_id: str) -> None:
        self._stopped[session_id] = None
        self._writer.forget(session_id)
        if len(self._stopped) > STOPPED_MAX:
            del self._stopped[next(iter(self._stopped))]

    def _forget(self, session_id: str) -> None:
        self._meters.pop(session_id, None)
        self._stopped.pop(session_id, None)
        with self._lock:
            self._accounts.end(session_id)

    def _look(self) -> None:
        """Check that the segment still exists, retry a failed disk, and write exchanges in progress."""
        if not self._writer.is_in_place():
            self._leave()
        if self._refusal is not None and world.monotonic() < self._probe_ns:
            return
        if self._refusal is not None or self._has_gaps():
            self._tell_gaps()
        if self._refusal is None:
            self._tell_begun()
        if self._is_fresh:
            self._dirty()

    def _leave(self) -> None:
        """Leave a segment that somebody has deleted, together with its records.

        The next segment reports this when there is a record to write, because data that was deleted on purpose must not
        reappear by itself.
        """
        with self._lock:
            open_sessions = self._accounts.sessions()
            lost = self._accounts.lose_segment()
        self._is_gone = True
        if open_sessions:
            self._warn(
                HomeError("the segments were deleted or replaced", where=str(self.home.path))
            )
        self._writer.retire()
        for session_id in open_sessions:
            self._stop(session_id)
            self._lose(session_id, lost.get(session_id, 0) or 1)

    def _tell_gaps(self, session_id: str | None = None) -> str | None:
        """Write the gaps of one session or all; return why that was not possible."""
        with self._lock:
            gaps = self._accounts.take_missing(world.now(), session_id)
        try:
            self._turn()
            for count, gap in enumerate(gaps):
                told = self._interpreter.interpret(gap)
                if (reason := self._written(told)) is not None:
                    return self._put_back(gaps[count:], reason)
                with self._lock:
                    self._accounts.tell(gap)
        except (OSError, HomeError) as error:
            return self._put_back(gaps, self._refuse(error))
        self._refusal = None
        return None

    def _has_gaps(self) -> bool:
        """Return whether there are gaps to report, and a segment to report them in."""
        return self._accounts.has_missing() and not self._is_gone

    def _put_back(self, gaps: list[Gap], reason: str) -> str:
        with self._lock:
            self._accounts.put_back(gaps)
        return reason

    def _tell_begun(self) -> None:
        """Write the known parts of exchanges in progress; if that fails, their sessions are not recorded any more."""
        if process.attendant is not self:
            return
        for exchange in transport.open_for(int(SYNC_SECONDS * 1e9)):
            if self._refused_before(exchange) is None:
                interpretation = self._interpreter.so_far(exchange)
                if interpretation is not None:
                    self._written(interpretation)

    def _finish(self) -> None:
        """Report gaps, and close the segment."""
        if not self._writer.is_in_place():
            self._leave()
        if self._has_gaps():
            self._tell_gaps()
        self._writer.seal()

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
                f"a backend failed and was removed: {type(error).__name__}. The agent and its recording continue.",
                about=f"backend {id(backend)}",
            )

    # The thread that keeps time.

    def _keep_time(self) -> None:
        """Periodically sync, and send the worker a tick. Sleeps if there is nothing to do."""
        stir, over, ticked_ns = self._stir, self._over, 0
        while not over.is_set():
            self._is_idle = True
            if not self._has_work():
                stir.wait(self._sweeper.patience_s())
            self._is_idle = False
            stir.clear()
            if not self._is_always:
                over.wait(SYNC_SECONDS)
            self._guarded(self._sync)
            self._guarded(self._sweeper.tick)
            if world.monotonic() - ticked_ns >= int(SYNC_SECONDS * 1e9) and not self._is_ticking:
                ticked_ns, self._is_ticking = world.monotonic(), True
                self._queue.put(_Tick())
            if self._is_always and not self._is_dirty and self._has_work():
                stir.wait(SYNC_SECONDS)

    def _has_work(self) -> bool:
        waits = self._refusal is not None or self._has_gaps()
        return self._is_dirty or waits or transport.has_open()

    def _dirty(self) -> None:
        """Request a sync of what was written."""
        self._is_fresh = False
        if self.options.sync != "process":
            self._is_dirty = True
        if self._is_idle or self._is_always:
            self._stir.set()

    def _sync(self) -> None:
        if not self._is_dirty:
            return
        self._is_dirty, handled = False, self._progress.handled
        try:
            self._writer.sync()
        except Exception as error:
            # After a failed sync, the operating system may treat the lost pages as written: a new file has to be
            # started.
            self._unsynced += 1
            self._is_doubtful = True
            self._warn(error, is_written=True)
        self._progress.sync(handled)

    # Anybody's thread.

    def _drop(self, record: Record, reason: str, error: BaseException | None = None) -> None:
        session_id, kind = _counted_as(record)
        with self._lock:
            self._accounts.drop(session_id, kind, reason)
        self._lose(session_id)
        if self._is_idle:
            self._stir.set()
        if reason not in ("stopped", self._refusal):
            self._warn(error)

    def _lose(self, session_id: str, records: int = 1) -> None:
        """Remember that a record of a session is missing in the journal and in its known costs."""
        with self._lock:
            self._interpreter.lose(session_id, records)
        if meter := self._meters.get(session_id):
            meter.lose(records)

    def _is_stuck(self) -> bool:
        return self._writer.stuck_ns() > STUCK_SECONDS * 1e9

    def _counted(self, in_time: bool) -> bool:
        if not in_time:
            self._late += 1
        return in_time

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._warn(error)

    def _say_unwritten(self) -> None:
        waiting = self.statistics().waiting
        why = "the disk does not respond" if self._is_stuck() else "the time limit was reached"
        say_once(f"{waiting} records were not written to {self.home.path}: {why}.")

    def _warn(self, error: BaseException | None, *, is_written: bool = False) -> None:
        """Warn once that the disk fails; the first failed operation is often not the only one."""
        with contextlib.suppress(Exception):  # even the text of an error may fail
            why = (
                error_kind(error)
                if error
                else "records arrived faster than the disk could write them"
            )
            why = why.removesuffix(".")
            text = (
                f"what was written to {self.home.path} may not survive a power loss: {why}. The agent and its "
                "recording continue; if that fails too, the session is marked incomplete and "
                "cannot be frozen."
                if is_written
                else f"a record was not written to {self.home.path}: {why}. The agent continues; the session is marked "
                "incomplete and cannot be frozen."
            )
            say_once(text, about=f"not written to {self.home.path}")


def _counted_as(record: Record) -> tuple[str, str]:
    """Return the session and the kind that a record is counted under; it is counted even after an internal error."""
    try:
        return session_of(record), kind_of(record)
    except BaseException:
        return OTHERS, "events"


def _with_counts(
    record: SessionEnd | SessionReturn, given: int, written: int
) -> SessionEnd | SessionReturn:
    """Return the end of a session with the number of its records received and the number in the journal."""
    if isinstance(record, SessionReturn):
        end = dataclasses.replace(record.end, emitted=given, written=written)
        return dataclasses.replace(record, end=end)
    return dataclasses.replace(record, emitted=given, written=written)


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _weakly(recorder: Recorder, name: str) -> Callable[[], None]:
    """Return a function that calls a method without keeping its object alive: fork handlers are never unregistered."""
    found = weakref.ref(recorder)

    def call() -> None:
        if (alive := found()) is not None:
            getattr(alive, name)()

    return call


def _at_end_of_pools(recorder: Recorder) -> None:
    """Close the recorder at the end of a `multiprocessing` process that was forked: it exits without `atexit`."""
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if process and util and process.parent_process() is not None:
        util.Finalize(None, recorder.close, exitpriority=0)
