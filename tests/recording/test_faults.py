"""Failing system calls of the recorder: the agent is not affected, and every record is accounted for."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import re
import shutil
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs import errors, tracing
from agentobs.agent.state import Tools
from agentobs.recording import record_queue, segment_writer, timekeeper
from agentobs.recording import session as sessions
from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.recording.journal.segments import Line, Segment, facts_path, read, segment_ids
from agentobs.recording.options import Options
from agentobs.recording.recorder import Recorder
from agentobs.recording.segment_writer import Writer
from agentobs.recording.vault.vault import read_session
from agentobs.records.backend import WrittenFact, receiving
from agentobs.records.exchanges import Place
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.verification import verify
from tests import queries
from tests.agent.agent_runs import events_of
from tests.agent.provider import Provider, call, message, streamed, text
from tests.agent.scenarios import count, fetch, look, write
from tests.agentobs_warnings import own_warnings
from tests.marks import mark_all_but_first
from tests.recording.faulty_files import ERRORS, OPERATIONS, Faulty, Plan, once, permanently
from tests.store.recordings import SECOND, T0, attempt, consent, end, session_id, start, tool


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the timekeeper tick more often."""
    monkeypatch.setattr(timekeeper, "SYNC_SECONDS", 0.02)


pytestmark = pytest.mark.filterwarnings("ignore:agentobs")


def session_records(number: int) -> list[Record]:
    """Return the records of a session with every kind of exchange."""
    call = {"type": "tool_use", "id": f"t{number}", "name": "weather", "input": {"city": "Bern"}}
    return [
        start(number),
        attempt(number, 1, content=[call]),
        consent(number, f"t{number}", at=T0 + SECOND),
        tool(number, f"t{number}", "weather", at=T0 + 2 * SECOND),
        attempt(number, 2, at=T0 + 4 * SECOND),
        end(number),
    ]


def wait_until(seen: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition is true; fail if it takes too long."""
    last = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < last, "the condition was not reached"
        time.sleep(0.01)


def record_all(recorder: Recorder, records: list[Record]) -> None:
    """Pass records to a recorder, and wait until it has written or dropped them."""
    for each in records:
        recorder(each)
    assert recorder.wait(20)


def check_accounts(recorder: Recorder, home: Home) -> None:
    """Check that given = written + dropped + waiting, in the statistics and for each session in the journal."""
    statistics = recorder.statistics()
    assert statistics.given == statistics.written + statistics.dropped + statistics.waiting, (
        statistics
    )
    assert statistics.dropped == sum(statistics.reasons.values())
    missing: Counter[str] = Counter()
    for line in lines_of(home):
        value = line.value()
        if line.kind == "gaps":
            missing[value["session_id"]] += value["records"]
        elif line.kind == "session_ends":
            assert value["emitted"] == value["written"] + missing[value["session_id"]], value
    assert missing.total() <= statistics.dropped


def check_accounts_in_sql(home: Home) -> None:
    """Check the same equation in the SQL view `session_records`."""
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT emitted, written, dropped, is_exact FROM session_records WHERE emitted IS NOT NULL"
        ).fetchall()
    assert rows
    assert all(row[3] for row in rows), rows


def lines_of(home: Home) -> list[Line]:
    """Return the lines of all facts files; fail if any is damaged."""
    lines = []
    for segment_id in segment_ids(home):
        for line in read(facts_path(home, segment_id)):
            assert isinstance(line, Line), line
            lines.append(line)
    return lines


def complete_sessions(home: Home) -> set[str]:
    """Check that every line of every segment can be read; return the complete sessions."""
    assert [
        str(each) for each in verify(home).findings if "not a complete record" not in each.found
    ] == []
    ends = [line.value() for line in lines_of(home) if line.kind == "session_ends"]
    return {each["session_id"] for each in ends if not each["dropped"]}


def record_with_faults(tmp_path: Path, plan: Plan, *, lasting: bool) -> None:
    """Record three sessions on a disk that fails according to a plan, and check everything that the recorder
    promises.
    """
    home, faulty = open_home(tmp_path), Faulty(plan)
    delivered: list[WrittenFact] = []
    recorder = Recorder(
        home, Options(files=faulty.files, backends=(receiving(["*"], delivered.append),))
    )
    for number in (1, 2):
        record_all(recorder, session_records(number))
    faulty.plan = lambda name, count: None if not lasting else plan(name, count)
    if not lasting:
        wait_until(lambda: recorder._health.refusal is None)
    record_all(recorder, session_records(3))
    assert recorder.close(20)
    statistics = recorder.statistics()
    assert (statistics.given, statistics.waiting) == (18, 0)
    check_accounts(recorder, home)
    complete = complete_sessions(home)
    if not lasting:
        assert session_id(3) in complete, "the next session is complete"
    for each in complete:
        recording = read_session(home, each, segment_ids(home))
        assert (len(recording.exchanges), recording.dropped) == (4, 0)
    names = [type(each.fact).__name__ for each in delivered]
    assert names.count("SessionEnd") == 3
    assert names.count("UsageRow") == 6


@pytest.mark.parametrize("operation", mark_all_but_first(OPERATIONS, pytest.mark.slow))
def test_a_system_call_that_fails_once(operation: str, tmp_path: Path) -> None:
    """If any system call of the write path fails once, no exception is raised, and the next session is complete."""
    faults = itertools.cycle((*ERRORS, "short", "EINTR"))
    for number in (1, 2, 3, 5, 8, 13):
        record_with_faults(
            tmp_path / str(number), once(operation, number, next(faults)), lasting=False
        )


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_system_call_that_fails_permanently(operation: str, tmp_path: Path) -> None:
    """After a permanent failure, the records that were written can be read, and all others are counted."""
    for number, fault in ((1, "EIO"), (2, "ENOSPC"), (4, "short"), (9, "EMFILE")):
        record_with_faults(
            tmp_path / str(number), permanently(operation, number, fault), lasting=True
        )


@pytest.mark.parametrize("seed", range(12))
def test_system_calls_that_fail_at_random(seed: int, tmp_path: Path) -> None:
    """If one system call in ten fails in a random way, no exception is raised, and all records are accounted for."""
    chance = random.Random(seed)
    faults = (*ERRORS, "short", "EINTR")
    record_with_faults(
        tmp_path,
        lambda name, count: chance.choice(faults) if chance.random() < 0.1 else None,
        lasting=False,
    )


def test_a_partly_written_record_is_dropped(tmp_path: Path) -> None:
    """If a record is partly written, its complete lines stay, because a reader may have seen them.

    The incomplete line is cut off, and the recording of the session ends.
    """
    faulty = Faulty(
        lambda name, count: (
            ("short", "EIO")[count - 5] if name == "write" and count in (5, 6) else None
        )
    )
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    record_all(recorder, session_records(1))
    wait_until(lambda: recorder._health.refusal is None)
    record_all(recorder, session_records(2))
    assert recorder.close()
    statistics = recorder.statistics()
    assert statistics.reasons.keys() == {"EIO", "stopped"}
    check_accounts(recorder, home)
    assert verify(home).ok
    [recording] = [read_session(home, session_id(1), segment_ids(home))]
    assert recording.dropped == statistics.dropped


def test_recording_resumes_when_the_disk_has_space_again(tmp_path: Path) -> None:
    """Within a second after a full disk has space again, a gap reports the dropped records, even if no further record
    arrives.

    The user gets only one warning.
    """
    full = True
    faulty = Faulty(lambda name, count: "ENOSPC" if full and name in ("write", "create") else None)
    home = open_home(tmp_path / "home")
    errors._reported.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        recorder = Recorder(home, Options(files=faulty.files))
        record_all(recorder, session_records(1))
        failed = faulty.failed
        wait_until(lambda: faulty.failed > failed)  # the gaps could not be written either
        full = False
        wait_until(
            lambda: recorder._health.refusal is None and not recorder._queue.accounts.has_gaps()
        )
        record_all(recorder, session_records(2))
        assert recorder.close()
    [warning] = own_warnings(warned)
    assert "No space left" in warning
    assert recorder.statistics().dropped == 6
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT session_id, sum(records) FROM gaps GROUP BY ALL"
        ).fetchall()
        states = dict(connection.execute("SELECT session_id, incomplete FROM sessions").fetchall())
    assert rows == [(session_id(1), 6)]
    assert states[session_id(2)] is False


def test_a_failure_ends_only_one_session(tmp_path: Path) -> None:
    """After a failed write, only the end of its session is written, and the session cannot be frozen.

    The next session is complete.
    """
    faulty = Faulty(once("write", 6, "EIO"))
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    records = [*session_records(1), *session_records(2)]
    record_all(recorder, records[:3])
    wait_until(lambda: recorder._health.refusal is None)
    record_all(recorder, records[3:])
    assert recorder.close()
    first, second = (read_session(home, session_id(n), segment_ids(home)) for n in (1, 2))
    assert (len(second.exchanges), second.dropped, second.outcome) == (4, 0, "completed")
    assert (first.dropped, first.outcome) == (recorder.statistics().dropped, "completed")
    assert first.dropped >= 3
    check_accounts(recorder, home)
    check_accounts_in_sql(home)


def test_a_segment_that_cannot_be_truncated_is_abandoned(tmp_path: Path) -> None:
    """If an incomplete line cannot be cut off, nothing is appended to its segment, and another segment starts."""
    faulty = Faulty(
        lambda name, count: (
            {("write", 6): "short", ("write", 7): "EIO"}.get((name, count))
            or ("EIO" if name == "truncate" else None)
        )
    )
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    for number in (1, 2):
        record_all(recorder, session_records(number))
        wait_until(lambda: recorder._health.refusal is None)
    assert recorder.close()
    assert len(segment_ids(home)) == 2
    assert session_id(2) in complete_sessions(home)
    check_accounts(recorder, home)


@pytest.mark.parametrize("how", ["deleted", "replaced", "whole home deleted"])
def test_the_next_session_is_recorded_if_the_directory_is_deleted(how: str, tmp_path: Path) -> None:
    """If the directory of the segments is deleted, the deleted records count as dropped, and the next session is
    recorded in a new directory.
    """
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    record_all(recorder, session_records(1)[:3])
    shutil.rmtree(home.path if how.startswith("whole") else home.segments)
    if how == "replaced":
        home.segments.mkdir(mode=0o700)
    recorder(session_records(1)[3])
    wait_until(lambda: recorder.is_stopped(session_id(1)))
    record_all(recorder, [session_records(1)[4], *session_records(2)])
    assert recorder.close()
    assert session_id(2) in complete_sessions(existing_home(home.path))
    # The recorder may notice the deletion before or after the fourth record arrives.
    assert recorder.statistics().reasons in (
        {"deleted": 4, "stopped": 1},
        {"deleted": 3, "stopped": 2},
    )


def test_deleted_records_count_as_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a directory is deleted while a session ends, its records do not count as written.

    The statistics, the end of the session and the gaps of the next segment report them, and also the records of a
    session that had ended before.
    """
    monkeypatch.setattr(
        timekeeper, "SYNC_SECONDS", 600
    )  # the end of the session notices the deletion before any tick
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    record_all(recorder, [*session_records(1), *session_records(2)[:4]])
    shutil.rmtree(home.path)
    record_all(recorder, [*session_records(2)[4:], *session_records(3)])
    assert recorder.close()
    statistics = recorder.statistics()
    assert (statistics.given, statistics.written, dict(statistics.reasons)) == (
        18,
        7,
        {"deleted": 11},
    )
    check_accounts(recorder, home)
    assert complete_sessions(home) == {session_id(3)}
    rows = [line.value() for line in lines_of(home) if line.kind == "gaps"]
    missing: Counter[tuple[str, str]] = Counter()
    for row in rows:
        missing[row["session_id"], row["reason"]] += row["records"]
    assert missing == {(session_id(1), "deleted"): 6, (session_id(2), "deleted"): 5}
    check_accounts_in_sql(home)


def test_deleted_gaps_are_reported_again(tmp_path: Path) -> None:
    """If a segment with gaps is deleted, the next segment reports the same gaps."""
    home, faulty = open_home(tmp_path / "home"), Faulty(once("write", 6, "EIO"))
    recorder = Recorder(home, Options(files=faulty.files))
    record_all(recorder, session_records(1))
    wait_until(lambda: recorder._health.refusal is None and not recorder._queue.accounts.has_gaps())
    before = recorder.statistics()
    shutil.rmtree(home.segments)
    record_all(recorder, session_records(2))
    record_all(recorder, session_records(3))
    assert recorder.close()
    statistics = recorder.statistics()
    assert statistics.dropped - before.dropped == statistics.reasons["deleted"] > 0
    missing = sum(line.value()["records"] for line in lines_of(home) if line.kind == "gaps")
    assert missing == statistics.dropped
    check_accounts(recorder, home)


def test_a_deleted_home_is_not_created_again(tmp_path: Path) -> None:
    """If no record arrives after the home was deleted, the home is not created again; the statistics report the deleted
    records.
    """
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    record_all(recorder, session_records(1))
    shutil.rmtree(home.path)
    assert recorder.close()
    assert not home.path.exists()
    assert recorder.statistics().reasons == {"deleted": 6}


@pytest.mark.parametrize("first", ["sync", "write"])
def test_a_failing_disk_is_reported_once(first: str, tmp_path: Path) -> None:
    """Whichever system call fails, there is one warning, and it reports a loss only if a record was lost."""
    faulty = Faulty()
    home = open_home(tmp_path / "home")
    errors._reported.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        recorder = Recorder(home, Options(files=faulty.files))
        faulty.plan = lambda name, count: "EMFILE" if name in (first, "sync_names") else None
        record_all(recorder, session_records(1))
        wait_until(lambda: faulty.failed)
        faulty.plan = lambda name, count: "EMFILE" if name in ("sync", "create", "write") else None
        failed = faulty.failed
        record_all(recorder, session_records(2))
        wait_until(lambda: faulty.failed > failed)
        faulty.plan = lambda name, count: None
        assert recorder.close()
    [warning] = own_warnings(warned)
    assert ("may not survive a power loss" in warning) == (first == "sync")
    assert ("a record was not written" in warning) == (first == "write")


def test_a_hanging_disk_does_not_block_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk hangs, the queue fills up to its limit, further records are dropped and counted, no call waits,
    and closing waits for 2 s.
    """
    monkeypatch.setattr(record_queue, "QUEUE_BYTES", 20_000)
    faulty = Faulty(permanently("write", 5, "hang"))
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    recorder(start(1))
    wait_until(lambda: recorder.statistics().written == 1)
    for number in range(100):
        recorder(tool(1, f"t{number}", "weather", at=T0 + number))
    statistics = recorder.statistics()
    assert statistics.given == 101 == statistics.written + statistics.dropped + statistics.waiting
    assert statistics.reasons["queue_full"] > 50
    wait_until(lambda: recorder._writer.current_call_ns() > 0)
    before = time.monotonic()
    assert recorder.close() is False
    spent = time.monotonic() - before
    faulty.free.set()
    assert recorder._thread is not None
    recorder._thread.join(20)
    assert spent < 5, "it waits less than for a disk that responds"
    statistics = recorder.statistics()
    assert statistics.given == statistics.written + statistics.dropped + statistics.waiting


def test_a_slow_sync_does_not_fill_the_queue(tmp_path: Path) -> None:
    """Syncs run in parallel with writes: records are written while a sync hangs."""
    faulty = Faulty(permanently("sync", 1, "hang"))
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    recorder(start(1))
    wait_until(lambda: faulty.counts["sync"])
    record_all(recorder, session_records(1)[1:])
    assert recorder.statistics().written == 6
    faulty.free.set()
    assert recorder.close(20)


def test_always_waits_for_the_disk_for_a_limited_time(tmp_path: Path) -> None:
    """With `always`, flushed records are durable; if the disk hangs, the wait for it is limited, and each late wait is
    counted.
    """
    faulty = Faulty()
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files, sync="always"))
    recorder(start(1))
    assert recorder.flush(20)
    assert faulty.counts["sync"] >= 2, "facts and content"
    faulty.plan = lambda name, count: "hang" if name == "sync" else None
    recorder(attempt(1, 1))
    assert recorder.wait(0.01) is False
    assert asyncio.run(recorder.settle(0.01)) is False
    assert recorder.statistics().late == 2
    faulty.free.set()
    faulty.plan = lambda name, count: None
    assert recorder.flush(20)
    faulty.plan = once("sync", faulty.counts["sync"] + 1, "EIO")
    recorder(attempt(1, 2))
    assert recorder.flush(20) is False, "the record is not reported as durable"
    assert recorder.statistics().unsynced == 1
    recorder(end(1))
    assert recorder.close()
    assert len(segment_ids(home)) == 2, "after a failed sync, another segment is used"


def test_a_flush_reports_each_loss_once(tmp_path: Path) -> None:
    """A flush returns False if a record was dropped since the previous flush, and True after later records are written.

    With `always`, it also reports a sync that failed before the flush was called.
    """
    faulty = Faulty(once("write", 3, "ENOSPC"))
    recorder = Recorder(open_home(tmp_path / "home"), Options(files=faulty.files))
    for each in session_records(1):
        recorder(each)
    assert recorder.wait(20)
    assert recorder.flush(20) is False
    assert recorder.statistics().reasons["ENOSPC"] > 0
    wait_until(lambda: recorder._health.refusal is None)
    recorder(start(2))
    assert recorder.flush(20) is True
    assert recorder.close()
    faulty = Faulty(once("sync", 1, "EIO"))
    recorder = Recorder(open_home(tmp_path / "always"), Options(files=faulty.files, sync="always"))
    recorder(start(3))
    wait_until(lambda: recorder.statistics().unsynced)
    assert recorder.flush(20) is False
    recorder(end(3))
    assert recorder.flush(20) is True
    assert recorder.close()


def test_a_failed_sync_is_not_repeated_on_the_same_file(tmp_path: Path) -> None:
    """A segment is sealed without a second sync. If it contains records that no sync has covered, it counts as not
    closed properly.
    """
    faulty = Faulty(once("sync", 1, "EIO"))
    home = open_home(tmp_path / "home")
    writer = Writer(home, faulty.files)
    writer.ensure_segment()
    [first] = segment_ids(home)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            writer.sync()
    assert writer.ensure_segment(), "another segment is used"
    assert (faulty.counts["sync"], writer.unsealed) == (1, 0)
    assert [line.kind for line in read(facts_path(home, first)) if isinstance(line, Line)][
        -1
    ] == "seal"
    faulty.plan = once("sync", 2, "EIO")
    with pytest.raises(OSError, match="Input/output error"):
        writer.sync()
    assert writer._segment is not None
    writer._segment.facts.append("fact", {})
    writer.seal()
    assert (faulty.counts["sync"], writer.unsealed) == (2, 1)


def test_a_segment_that_cannot_be_sealed_is_synced(tmp_path: Path) -> None:
    """If the disk is too full for the last line of a segment, its other lines are synced when it is closed."""
    faulty = Faulty()
    writer = Writer(open_home(tmp_path / "home"), faulty.files)
    writer.ensure_segment()
    assert writer._segment is not None
    writer._segment.facts.append("fact", {})
    assert faulty.counts["sync"] == 0
    faulty.plan = lambda name, count: "ENOSPC" if name == "write" else None
    writer.seal()
    assert (faulty.counts["sync"], writer.unsealed) == (1, 1)


def test_a_flush_reports_a_failed_sync_at_the_end_of_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `always`, a flush returns False if a full segment could not be synced when it was closed."""
    monkeypatch.setattr(segment_writer, "SEGMENT_BYTES", 0)
    faulty = Faulty()
    recorder = Recorder(open_home(tmp_path / "home"), Options(files=faulty.files, sync="always"))
    recorder(start(1))
    assert recorder.flush(20) is True
    faulty.plan = lambda name, count: (
        "EIO" if name == "sync" and threading.current_thread() is recorder._thread else None
    )
    recorder(attempt(1, 1))
    assert recorder.flush(20) is False
    faulty.plan = lambda name, count: None
    recorder(end(1))
    assert recorder.flush(20) is True
    assert recorder.close()
    statistics = recorder.statistics()
    assert (statistics.unsynced, statistics.unsealed) == (0, 1)


class _Raising:
    """Raises an exception when it is called."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error


INTERFACES = [
    "agentobs.recording.facts.interpreter.Interpreter.interpret",
    "agentobs.recording.facts.interpreter.Interpreter.interpret_partial",
    "agentobs.recording.facts.interpreter.Interpreter.forget_bodies",
    "agentobs.recording.segment_writer.Writer.ensure_segment",
    "agentobs.recording.segment_writer.Writer.write",
    "agentobs.recording.segment_writer.Writer.sync",
    "agentobs.recording.segment_writer.Writer.seal",
    "agentobs.recording.segment_writer.Writer.is_in_place",
    "agentobs.recording.record_accounts.Accounts.take_gaps",
    "agentobs.recording.record_queue.queue_bytes",
    "agentobs.recording.record_queue.session_of",
    "agentobs.recording.recorder.session_of",
    "agentobs.recording.recorder.kind_of",
    "agentobs.recording.wire.transport.open_for",
    "agentobs.recording.wire.transport.take_open",
]


@pytest.mark.slow
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("error", [RuntimeError("ours"), MemoryError(), SystemExit(1)], ids=repr)
def test_an_internal_error_never_reaches_the_agent(
    interface: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception at any internal interface does not reach the agent, and the recorder records the next session
    completely.
    """
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    with monkeypatch.context() as patched:
        patched.setattr(interface, _Raising(error))
        for each in session_records(1):
            if isinstance(error, Exception) or interface.startswith(
                ("agentobs.recording.facts.interpreter", "agentobs.recording.segment_writer")
            ):
                recorder(each)
        recorder.flush(20)
    record_all(recorder, session_records(2))
    assert recorder.close()
    assert session_id(2) in complete_sessions(home)
    statistics = recorder.statistics()
    assert statistics.given == statistics.written + statistics.dropped + statistics.waiting


# The agent loop, with and without a recorder.

ANSWERS = [
    message(call("a", "look", where="x"), call("b", "write", what="y")),
    message(call("c", "count", number=1)),
    message(text("Done.")),
]
TOOLS: Tools = (look, write, fetch, count)


_TIMES = re.compile(r"[a-z_]+_ns=\d+")


def events(home: Path | None = None, plan: Plan | None = None) -> list[str]:
    """Return the events of a run of the agent loop, recorded on a disk that fails according to a plan, or not
    recorded.
    """
    recorder = None
    if home is not None and plan is not None:
        recorder = sessions.start_recorder(str(home), Options(files=Faulty(plan).files))
        assert recorder is not None
    try:
        with Provider([streamed(each) for each in ANSWERS]) as provider:
            if recorder is not None:
                plainly = provider.client
                provider.client = lambda: agentobs.record(plainly())  # type: ignore[method-assign]
            with tracing.at(Place("5" * 32)):
                # Concurrent calls read the clock in random order.
                return [_TIMES.sub("", repr(each)) for each in events_of(provider, tools=TOOLS)]
    finally:
        if recorder is not None:
            agentobs.stop_recorder()
            statistics = recorder.statistics()
            assert statistics.given == statistics.written + statistics.dropped + statistics.waiting
            assert statistics.given > 10


@pytest.fixture(scope="module")
def unrecorded() -> list[str]:
    return events()


def test_recording_does_not_change_the_agent_loop(tmp_path: Path, unrecorded: list[str]) -> None:
    """A run of the agent loop emits the same events with and without a recorder."""
    assert events(tmp_path, lambda name, count: None) == unrecorded


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failing_call_does_not_change_the_agent_loop(
    operation: str, tmp_path: Path, unrecorded: list[str]
) -> None:
    """If any system call of the write path fails, once or permanently, a run of the agent loop emits the same
    events.
    """
    chance = random.Random(operation)
    for kind in (once, permanently):
        plan = kind(operation, chance.randint(1, 9), chance.choice(ERRORS))
        assert events(tmp_path / kind.__name__, plan) == unrecorded


@pytest.mark.parametrize("seed", range(4))
def test_random_failures_do_not_change_the_agent_loop(
    seed: int, tmp_path: Path, unrecorded: list[str]
) -> None:
    """If system calls fail at random, a run of the agent loop emits the same events."""
    chance = random.Random(seed)
    faults = (*ERRORS, "short", "EINTR")
    plan = lambda name, count: chance.choice(faults) if chance.random() < 0.2 else None  # noqa: E731
    assert events(tmp_path, plan) == unrecorded


def test_the_process_session_is_replaced_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a record of the process session could not be written, the session ends, and the next call opens another
    one.
    """
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    faulty = Faulty()
    assert agentobs.start(options=Options(files=faulty.files))
    try:
        first = sessions._process_place().session_id
        recorder = sessions.start_recorder()
        assert recorder is not None
        assert recorder.flush(20)
        faulty.plan = lambda name, count: "ENOSPC" if name == "write" else None
        recorder(dataclasses.replace(tool(1, "t1", "weather", at=T0), place=Place(first)))
        assert recorder.flush(20) is False, "the record was dropped"
        faulty.plan = lambda name, count: None
        wait_until(lambda: recorder._health.refusal is None)
        assert sessions._process_place().session_id != first
    finally:
        assert agentobs.stop_recorder()
    rows = queries.query(
        "SELECT incomplete FROM sessions ORDER BY started_ns", home=tmp_path / "home"
    )
    assert rows == [(True,), (False,)]


def test_a_crashed_session_with_a_gap_is_incomplete(tmp_path: Path) -> None:
    """A session that has a gap and no end is incomplete."""
    home = open_home(tmp_path / "home")
    segment = Segment(home)
    segment.facts.append(
        "attempts", {"session_id": session_id(1), "attempt_id": "a", "outcome": "ok"}
    )
    segment.facts.append("gaps", {"session_id": session_id(1), "reason": "EIO", "records": 3})
    segment.close()
    rows = queries.query("SELECT status, dropped, incomplete FROM sessions", home=home.path)
    assert rows == [("crashed", 3, True)]
