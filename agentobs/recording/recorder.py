"""The recorder: the consumer of records that writes them to the journal.

The caller's thread only puts a reference into a queue that is bounded in bytes. One worker thread splits each record
into facts and content, removes secrets, passes both to the segment writer, and passes the facts to the cost meters and
the backends. The writer and the backends do not know each other. A second thread, the timekeeper, syncs what was
written, and lets the worker write the known parts of exchanges that have not ended, and the facts of the events in a
stream of a managed agent.

If the operating system refuses to write a record, the recording of its session ends: later records of the session are
counted, and still passed on. Other sessions continue when the disk can be written again; the records that were dropped
in between are reported first.

The attributes of a recorder are of two kinds. Some are set once: options, home, interpreter, writer, and the consumers
of facts. The others change while it records: the queue with its counts, the health of the journal, the timekeeper, and
the sessions whose recording has ended. A forked child replaces all attributes of the second kind.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentobs import world
from agentobs.errors import HomeError, error_kind, warn_once
from agentobs.ledger import Meter
from agentobs.recording import timekeeper
from agentobs.recording.fact_consumers import FactConsumers
from agentobs.recording.facts.interpreter import Interpretation, Interpreter, session_of
from agentobs.recording.journal.home import Home
from agentobs.recording.journal_health import DiskState, JournalHealth
from agentobs.recording.options import Options
from agentobs.recording.record_accounts import OTHERS, kind_of, reason_of
from agentobs.recording.record_queue import Command, QueuedRecord, RecordQueue, WorkerPauses
from agentobs.recording.segment_writer import Writer
from agentobs.recording.span_sweeper import Sweeper
from agentobs.recording.timekeeper import Timekeeper
from agentobs.recording.vault.encryption import Sealer, content_key
from agentobs.recording.wire import transport
from agentobs.records.exchanges import SessionReturn, has_parent_lane
from agentobs.records.facts import Gap, InteractionEnd, InteractionStart, SessionEnd
from agentobs.redaction import Redactor
from agentobs.runtime import process
from agentobs.sink import Record

ALWAYS_SECONDS = 0.05
"""The longest wait for the sync at the end of a response, with `Options.sync="always"`."""
STUCK_SECONDS = 2.0
"""How long a call to the operating system may take at process exit before it counts as hanging. Our choice: on a busy
machine one call may take a second, and the waiting records are worth that time.
"""
STOPPED_MAX = 10_000
"""The maximum number of sessions with a stopped recording that are remembered. Our choice."""


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """What happened to the records that the recorder received: given = written + dropped + waiting."""

    written: int
    """Records that are in the journal."""
    dropped: int
    """Records that were not written because the queue was full or the disk failed."""
    waiting: int
    """Records in the queue."""
    given: int
    """Records that were received."""
    reasons: Mapping[str, int]
    """The number of dropped records by reason: the name of the operating system's error, or a word; see the table
    `gaps`.
    """
    unsynced: int
    """How often a sync failed."""
    unsealed: int
    """Segments that could not be closed properly; everything that was written to them is still there."""
    late: int
    """Waits that ended before the expected records were written."""
    unredacted: int = 0
    """Texts that could not be searched for secrets; they are replaced by `[REDACTION FAILED]`."""
    backends_removed: int = 0
    """Backends that raised an exception and were removed."""


def _seal_key(options: Options) -> bytes | None:
    """Return the key that content is encrypted with; None if content is not encrypted.

    Raises:
        UsageError: the key cannot be used. Nothing is recorded then.
    """
    key = content_key(options.seal_key)
    if key is not None:
        Sealer(key, "")
    return key


class Recorder:
    """Writes the records of one process into segments of one home."""

    def __init__(self, home: Home, options: Options | None = None) -> None:
        """Record into `home`; the first segment is created with the first record."""
        self.home = home
        self.options = options or Options()
        key = _seal_key(self.options)
        self.is_sealed = key is not None
        """Whether content is encrypted."""
        self._is_always = self.options.sync == "always"
        self._pauses = WorkerPauses(lambda: self._queue.fill)
        self._interpreter = Interpreter(
            home.key(), self.options.redactors, self.options.sampling, self._pauses.pause_if_due
        )
        self._writer = Writer(
            home, self.options.files, sync=self.options.sync != "process", key=key
        )
        self._sweeper = Sweeper(self.options)
        self._consumers = FactConsumers(self.options.backends, self._interpreter.lost)
        self._reset()
        process.exchange_observer = self
        process.wait_seconds = ALWAYS_SECONDS if self._is_always else 0.0
        atexit.register(self.close)
        os.register_at_fork(after_in_child=_weakly(self, "_reset_in_child"))

    def _reset(self) -> None:
        """Initialize the state that changes during recording, in a new recorder or a forked child process."""
        self._queue = RecordQueue(self._start_threads, durably=self._is_always)
        self._health = JournalHealth()
        self._timekeeper = Timekeeper(
            self.options.sync,
            self._writer,
            self._queue.progress,
            self._sweeper,
            has_periodic_work=self._has_periodic_work,
            send_tick=self._queue.send_tick,
            guarded=self._guarded,
            warn=self._warn_unsynced,
        )
        self._thread: threading.Thread | None = None
        self._background_interactions: set[str | None] = set()
        """Interactions of background agents that have not ended and may outlive their session."""
        self._stopped: dict[str, None] = {}
        """The sessions whose recording has ended because one of their records could not be written, oldest first."""
        self._late_waits = 0
        self._reported_losses = 0
        """The losses that the last flush reported."""

    def __call__(self, record: Record) -> None:
        """Accept one record; never waits, never raises.

        The end of a session also ends its exchanges in progress. No record of a session follows its end, except
        those of its background agents.
        """
        try:
            if isinstance(record, InteractionStart) and has_parent_lane(record.lane):
                self._background_interactions.add(record.interaction_id)
            elif isinstance(record, InteractionEnd):
                self._background_interactions.discard(record.interaction_id)
            elif isinstance(record, SessionEnd | SessionReturn):
                for exchange in transport.take_open(
                    session_of(record), continuing=self._background_interactions
                ):
                    self(exchange)
            if (reason := self._queue.put(record)) is not None:
                self._drop(record, reason)
        except Exception as error:
            self._warn(error)

    def opened(self) -> None:
        """Note that a request was sent; see `agentobs.runtime.ExchangeObserver`."""
        self._timekeeper.wake()

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until all records so far are processed, at most `seconds`; return whether they are all written.

        If records were dropped since the previous flush, this returns False. With `Options.sync="always"`, it returns
        True only if the records are durable.
        """
        before = self._reported_losses
        is_processed = self._queue.progress.wait(seconds)
        self._reported_losses = self._losses()
        return is_processed and self._reported_losses == before

    def _losses(self) -> int:
        """Return how many records were dropped, and with `always` also how many syncs failed."""
        with self._queue.lock:
            dropped = sum(self._queue.accounts.dropped.values())
        return dropped + (self._failed_syncs() if self._is_always else 0)

    def _failed_syncs(self) -> int:
        """Return how many syncs failed, including those at the end of a segment."""
        return self._timekeeper.failed_syncs + self._writer.unsealed

    def wait(self, seconds: float) -> bool:
        """Wait until all records so far are processed, at most `seconds`, and count the wait if it ended too early.

        With `Options.sync="always"`, the records are durable then, unless a sync failed.
        """
        failed_before = self._failed_syncs()
        is_processed = self._queue.progress.wait(seconds)
        is_durable = not self._is_always or self._failed_syncs() == failed_before
        return self._count_late(is_processed and is_durable)

    async def settle(self, seconds: float) -> bool:
        """Like `wait`, without blocking an event loop."""
        return self._count_late(await self._queue.progress.settle(seconds))

    def close(self, seconds: float = 5.0) -> bool:
        """Write waiting records and seal the segment; return whether everything was written in time.

        Exchanges in progress are written as cancelled. If the operating system does not respond, this stops waiting.
        """
        if self._queue.is_closed:
            return True
        for exchange in transport.take_open():
            self(exchange)
        is_written = self._queue.progress.wait(seconds, give_up=self._is_stuck)
        self._queue.close()
        self._end_threads(seconds)
        self._consumers.close()
        atexit.unregister(self.close)
        if process.exchange_observer is self:
            process.exchange_observer, process.wait_seconds = None, 0.0
        if not is_written:
            self._warn_unwritten()
        return is_written

    def _end_threads(self, seconds: float) -> None:
        """Wait at most `seconds` until the worker has sealed its segment and exited, then end the timekeeper."""
        if self._thread is None:
            return
        deadline = world.monotonic() + int(seconds * 1e9)
        while self._thread.is_alive() and world.monotonic() < deadline and not self._is_stuck():
            self._thread.join(0.01)
        self._timekeeper.stop()

    def join(self, session_id: str, content: str) -> None:
        """Accept records of a session that another process has started; `content` is its content mode."""
        self._interpreter.join(session_id, content)

    @property
    def redactor(self) -> Redactor:
        """The redactor, which removes secrets from everything that this process stores."""
        return self._interpreter.redactor

    def meter(self, session_id: str) -> Meter:
        """Return the meter that adds up the costs of a session while it is recorded."""
        return self._consumers.meter(session_id)

    def statistics(self) -> RecorderStatistics:
        """Return the counts so far."""
        with self._queue.lock:
            accounts = self._queue.accounts
            dropped = sum(accounts.dropped.values())
            return RecorderStatistics(
                written=accounts.written,
                dropped=dropped,
                waiting=accounts.received - accounts.written - dropped,
                given=accounts.received,
                reasons=dict(accounts.dropped),
                unsynced=self._timekeeper.failed_syncs,
                unsealed=self._writer.unsealed,
                late=self._late_waits,
                unredacted=self._interpreter.redactor.failed,
                backends_removed=self._consumers.removed_backends,
            )

    def is_stopped(self, session_id: str) -> bool:
        """Return whether the recording of a session has ended because a record could not be written."""
        return session_id in self._stopped

    def _start_threads(self) -> bool:
        """Start the worker and the timekeeper with the first record; return whether there is a worker now."""
        try:
            self._thread = _started(self._work, "agentobs-recorder")
            _started(self._timekeeper.run, "agentobs-sync")
        except (
            RuntimeError
        ):  # no thread can be started, for example because the interpreter is exiting
            return self._thread is not None
        _close_with_multiprocessing(self)
        return True

    def _reset_in_child(self) -> None:
        """In a child process, leave the parent's segment alone and start a new one."""
        self._pauses.end()
        transport.forget_open()
        self._consumers.reset_in_child()
        is_closed = self._queue.is_closed
        self._reset()
        self._queue.is_closed = is_closed
        self._interpreter.reset_in_child()
        self._writer.reset_in_child()

    # Methods of the worker's thread.

    def _work(self) -> None:
        is_working = True
        while is_working:
            item = self._queue.get()
            with self._pauses:
                is_working = self._handle(item)

    def _handle(self, item: QueuedRecord | Command) -> bool:
        """Process one item of the queue; return False after the last one."""
        if item is Command.STOP:
            self._guarded(self._finish)
            return False
        if item is Command.TICK:
            self._timekeeper.note_tick()
            self._guarded(self._tick)
            return True
        record, size, session_records = item
        self._process(record, session_records)
        self._pauses.pause_if_due()
        self._queue.note_processed(size)
        self._timekeeper.request_sync()
        return True

    def _process(self, record: Record, session_records: int) -> None:
        """Write a record or count it as dropped; no exception may end the worker."""
        error: BaseException | None = None
        try:
            reason = self._record(record, session_records)
        except BaseException as raised:
            reason, error = reason_of(raised), raised
        if reason is not None:
            self._drop(record, reason, error)
        else:
            with self._queue.lock:
                self._queue.accounts.count_written(*_counted_as(record))
        if isinstance(record, SessionEnd | SessionReturn):
            self._forget_session(session_of(record))

    def _record(self, record: Record, session_records: int) -> str | None:
        """Write a record, and pass its facts on; return None, or the reason if it was not written."""
        session_id = session_of(record)
        reason = self._reason_to_skip(record)
        if isinstance(record, SessionEnd | SessionReturn) and reason is None:
            self._check_segment()
            reason = self._report_gaps(session_id)
            written = self._queue.accounts.written_of(session_id) + 1
            record = _with_counts(record, session_records, written)
        interpretation = self._interpreter.interpret(record)
        if not interpretation.is_complete:
            self._note_lost(interpretation.session_id)
        try:
            return reason or self._write(interpretation)
        finally:
            self._consumers.deliver(interpretation.session_id, interpretation.facts)
            process.note_record(record, interpretation.facts)

    def _reason_to_skip(self, record: Record) -> str | None:
        """Return the reason if a record must not be written; otherwise ensure that there is a segment."""
        session_id = session_of(record)
        if session_id in self._stopped and not isinstance(record, SessionEnd | SessionReturn):
            return "stopped"
        if self._health.disk() is DiskState.PAUSED:
            self._stop_session(session_id)
            return self._health.refusal
        try:
            self._ensure_segment()
        except (OSError, HomeError) as error:
            return self._note_refusal(error, session_id)
        return None

    def _ensure_segment(self) -> None:
        """Ensure that there is a segment. Records in a new segment do not refer to the previous segment."""
        if self._writer.ensure_segment():
            self._interpreter.forget_bodies()
            self._health.note_new_segment()
            with self._queue.lock:
                self._queue.accounts.begin_segment()

    def _write(self, interpretation: Interpretation) -> str | None:
        """Write the facts and content of a record; return None, or the reason if that was not possible."""
        try:
            self._writer.write(interpretation)
        except OSError as error:
            return self._note_refusal(error, interpretation.session_id)
        except BaseException:
            self._interpreter.forget_bodies()
            raise
        self._health.note_success()
        return None

    def _note_refusal(self, error: Exception, session_id: str | None = None) -> str:
        """Note that the operating system refused a write, and stop recording the session; return the reason."""
        reason = reason_of(error)
        self._health.note_refusal(reason, timekeeper.SYNC_SECONDS)
        self._warn(error)
        if session_id is not None:
            self._stop_session(session_id)
        if self._writer.is_torn():
            for each in self._writer.sessions_in_progress():
                self._stop_session(each)
            self._writer.abandon_segment()
        self._interpreter.forget_bodies()
        return reason

    def _stop_session(self, session_id: str) -> None:
        self._stopped[session_id] = None
        self._writer.forget_session(session_id)
        if len(self._stopped) > STOPPED_MAX:
            del self._stopped[next(iter(self._stopped))]

    def _forget_session(self, session_id: str) -> None:
        self._consumers.end_session(session_id)
        self._stopped.pop(session_id, None)
        with self._queue.lock:
            self._queue.accounts.end_session(session_id)

    def _tick(self) -> None:
        """Check that the segment still exists, retry a failed disk, and write exchanges in progress."""
        writes_before = self._writer.writes
        try:
            self._check_segment()
            disk = self._health.disk()
            if disk is DiskState.RETRY_DUE or (disk is DiskState.WRITABLE and self._has_gaps()):
                self._report_gaps()
            if self._health.disk() is DiskState.WRITABLE:
                self._write_exchanges_in_progress()
        finally:
            if self._writer.writes != writes_before:
                self._timekeeper.request_sync()

    def _check_segment(self) -> None:
        """If the segment was deleted together with its records, count them as lost, and end the open sessions.

        The next segment reports this, but it is only created when there is a record to write: data that was deleted on
        purpose must not reappear by itself.
        """
        if self._writer.is_in_place():
            return
        with self._queue.lock:
            open_sessions = self._queue.accounts.sessions()
            lost = self._queue.accounts.lose_segment()
        self._health.note_deleted_segment()
        if open_sessions:
            self._warn(
                HomeError("the segments were deleted or replaced", where=str(self.home.path))
            )
        self._writer.abandon_segment()
        for session_id in open_sessions:
            self._stop_session(session_id)
            self._note_lost(session_id, lost.get(session_id, 0) or 1)

    def _report_gaps(self, session_id: str | None = None) -> str | None:
        """Write the gaps of one session or all; return None, or the reason if that was not possible."""
        with self._queue.lock:
            gaps = self._queue.accounts.take_gaps(world.now(), session_id)
        try:
            self._ensure_segment()
            for index, gap in enumerate(gaps):
                if (reason := self._write(self._interpreter.interpret(gap))) is not None:
                    return self._restore_gaps(gaps[index:], reason)
                with self._queue.lock:
                    self._queue.accounts.count_reported_gap(gap)
        except (OSError, HomeError) as error:
            return self._restore_gaps(gaps, self._note_refusal(error))
        self._health.note_success()
        return None

    def _has_gaps(self) -> bool:
        """Return whether there are gaps to report, and a segment to report them in."""
        return self._queue.accounts.has_gaps() and not self._health.is_segment_deleted

    def _restore_gaps(self, gaps: list[Gap], reason: str) -> str:
        """Count gaps again that could not be written; return the reason."""
        with self._queue.lock:
            self._queue.accounts.restore_gaps(gaps)
        return reason

    def _write_exchanges_in_progress(self) -> None:
        """Write the known parts of exchanges in progress; if that fails, their sessions are no longer recorded."""
        if process.exchange_observer is not self:
            return
        for exchange in transport.open_for(int(timekeeper.SYNC_SECONDS * 1e9)):
            if self._reason_to_skip(exchange) is None:
                interpretation = self._interpreter.interpret_partial(exchange)
                if interpretation is not None:
                    self._write_partial(interpretation)
                self._pauses.pause_if_due()

    def _write_partial(self, interpretation: Interpretation) -> None:
        """Write the new content, facts and drafts of an exchange in progress, and pass the facts on."""
        try:
            self._write(interpretation)
        finally:
            self._consumers.deliver(interpretation.session_id, interpretation.facts)

    def _finish(self) -> None:
        """Report gaps, and close the segment."""
        self._check_segment()
        if self._has_gaps():
            self._report_gaps()
        self._writer.seal()

    # Methods of the timekeeper's thread.

    def _has_periodic_work(self) -> bool:
        """Return whether the worker needs ticks: the disk is refusing, or there are gaps or exchanges in progress."""
        return self._health.refusal is not None or self._has_gaps() or transport.has_open()

    # Methods of any thread.

    def _drop(self, record: Record, reason: str, error: BaseException | None = None) -> None:
        """Count a record as dropped, and warn once."""
        session_id, kind = _counted_as(record)
        with self._queue.lock:
            self._queue.accounts.count_dropped(session_id, kind, reason)
        self._note_lost(session_id)
        self._timekeeper.wake()
        if reason not in ("stopped", self._health.refusal):
            self._warn(error)

    def _note_lost(self, session_id: str, records: int = 1) -> None:
        """Remember that records of a session are missing in the journal and in its known costs."""
        with self._queue.lock:
            self._interpreter.lose(session_id, records)
        self._consumers.note_lost(session_id, records)

    def _is_stuck(self) -> bool:
        """Return whether the worker has been waiting for the operating system for too long."""
        return self._writer.current_call_ns() > STUCK_SECONDS * 1e9

    def _count_late(self, in_time: bool) -> bool:
        if not in_time:
            self._late_waits += 1
        return in_time

    def _guarded(self, work: Callable[[], None]) -> None:
        """Call a function; print a warning if it raises an exception, so that the thread does not end."""
        try:
            work()
        except BaseException as error:
            self._warn(error)

    def _warn_unwritten(self) -> None:
        waiting = self.statistics().waiting
        why = "the disk does not respond" if self._is_stuck() else "the time limit was reached"
        warn_once(f"{waiting} records were not written to {self.home.path}: {why}.")

    def _warn_unsynced(self, error: Exception) -> None:
        self._warn(error, is_written=True)

    def _warn(self, error: BaseException | None, *, is_written: bool = False) -> None:
        """Warn once that the disk fails; the first failed operation is often not the only one."""
        with contextlib.suppress(Exception):  # describing the error may raise an exception
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
            warn_once(text, about=f"not written to {self.home.path}")


def _counted_as(record: Record) -> tuple[str, str]:
    """Return the session and the kind under which a record is counted; records are counted even after an internal
    error.
    """
    try:
        return session_of(record), kind_of(record)
    except BaseException:
        return OTHERS, "events"


def _with_counts(
    record: SessionEnd | SessionReturn, received: int, written: int
) -> SessionEnd | SessionReturn:
    """Return the end of a session with two counts: its received records, and its records in the journal."""
    if isinstance(record, SessionReturn):
        end = dataclasses.replace(record.end, emitted=received, written=written)
        return dataclasses.replace(record, end=end)
    return dataclasses.replace(record, emitted=received, written=written)


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _weakly(recorder: Recorder, name: str) -> Callable[[], None]:
    """Return a function that calls a method without keeping its object alive: fork handlers are never unregistered."""
    reference = weakref.ref(recorder)

    def call() -> None:
        if (alive := reference()) is not None:
            getattr(alive, name)()

    return call


def _close_with_multiprocessing(recorder: Recorder) -> None:
    """Close the recorder at the end of a forked `multiprocessing` process, which exits without calling `atexit`."""
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if process and util and process.parent_process() is not None:
        util.Finalize(None, recorder.close, exitpriority=0)
