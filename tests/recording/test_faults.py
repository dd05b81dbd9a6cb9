"""The operating system fails under the recorder: the agent never hears of it, and every record is accounted for."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import re
import shutil
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
from agentobs.recording import recorder as recorders
from agentobs.recording import session as sessions
from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.recording.journal.segments import Line, Segment, facts_path, read, segment_ids
from agentobs.recording.options import Options
from agentobs.recording.recorder import Recorder
from agentobs.recording.vault.vault import read_session
from agentobs.records.backend import Told
from agentobs.records.exchanges import Place
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.verification import verify
from tests.agent.provider import Provider, call, message, streamed, text
from tests.agent.scenarios import count, fetch, look, write
from tests.agent.scene import events_of
from tests.recording.faulty import ERRORS, OPERATIONS, Faulty, Plan, for_good, once
from tests.store.making import SECOND, T0, attempt, consent, end, session_id, start, tool
from tests.warned import said


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks come faster than they would."""
    monkeypatch.setattr(recorders, "SYNC_SECONDS", 0.02)


pytestmark = pytest.mark.filterwarnings("ignore:agentobs")


def story(number: int) -> list[Record]:
    """The records of a session with every kind of exchange."""
    asked = {"type": "tool_use", "id": f"t{number}", "name": "weather", "input": {"city": "Bern"}}
    return [
        start(number),
        attempt(number, 1, content=[asked]),
        consent(number, f"t{number}", at=T0 + SECOND),
        tool(number, f"t{number}", "weather", at=T0 + 2 * SECOND),
        attempt(number, 2, at=T0 + 4 * SECOND),
        end(number),
    ]


def until(seen: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until something is seen."""
    last = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < last, "it never came"
        time.sleep(0.01)


def given_to(recorder: Recorder, records: list[Record]) -> None:
    for each in records:
        recorder(each)
    assert recorder.flush(20)


def identity(recorder: Recorder, home: Home) -> None:
    """given = written + dropped by reason + waiting: in the statistics, and for each session in its journal."""
    told = recorder.statistics()
    assert told.given == told.written + told.dropped + told.waiting, told
    assert told.dropped == sum(told.reasons.values())
    missing: Counter[str] = Counter()
    for line in lines_of(home):
        value = line.value()
        if line.kind == "gaps":
            missing[value["session_id"]] += value["records"]
        elif line.kind == "session_ends":
            assert value["emitted"] == value["written"] + missing[value["session_id"]], value
    assert missing.total() <= told.dropped


def in_sql(home: Home) -> None:
    """So does the view."""
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT emitted, written, dropped, is_exact FROM session_records WHERE emitted IS NOT NULL"
        ).fetchall()
    assert rows
    assert all(row[3] for row in rows), rows


def lines_of(home: Home) -> list[Line]:
    """Return the lines of all facts, each of which reads back."""
    lines = []
    for segment_id in segment_ids(home):
        for line in read(facts_path(home, segment_id)):
            assert isinstance(line, Line), line
            lines.append(line)
    return lines


def reads_back(home: Home) -> set[str]:
    """Every line of every segment reads back; returns the sessions that are there whole."""
    assert [str(each) for each in verify(home).findings if "whole record" not in each.found] == []
    ends = [line.value() for line in lines_of(home) if line.kind == "session_ends"]
    return {each["session_id"] for each in ends if not each["dropped"]}


def swept(tmp_path: Path, plan: Plan, *, lasting: bool) -> None:
    """Record three sessions on a disk that fails as planned, and hold every promise."""
    home, faulty = open_home(tmp_path), Faulty(plan)
    heard: list[Told] = []
    recorder = Recorder(home, Options(files=faulty.files, backends=(heard.append,)))
    for number in (1, 2):
        given_to(recorder, story(number))
    faulty.plan = lambda name, count: None if not lasting else plan(name, count)
    if not lasting:
        until(lambda: recorder._refusal is None)
    given_to(recorder, story(3))
    assert recorder.close(20)
    told = recorder.statistics()
    assert (told.given, told.waiting) == (18, 0)
    identity(recorder, home)
    whole = reads_back(home)
    if not lasting:
        assert session_id(3) in whole, "the next session goes on"
    for each in whole:
        recording = read_session(home, each, segment_ids(home))
        assert (len(recording.exchanges), recording.dropped) == (4, 0)
    names = [type(each.fact).__name__ for each in heard]
    assert names.count("SessionEnd") == 3
    assert names.count("UsageRow") == 6


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_fails_once(operation: str, tmp_path: Path) -> None:
    """Whichever call of the write path fails, whenever it does: nothing is raised, and the next session is whole."""
    faults = itertools.cycle((*ERRORS, "short", "EINTR"))
    for number in (1, 2, 3, 5, 8, 13):
        swept(tmp_path / str(number), once(operation, number, next(faults)), lasting=False)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_fails_for_good(operation: str, tmp_path: Path) -> None:
    """From then on: what is written is whole, and all else is counted."""
    for number, fault in ((1, "EIO"), (2, "ENOSPC"), (4, "short"), (9, "EMFILE")):
        swept(tmp_path / str(number), for_good(operation, number, fault), lasting=True)


@pytest.mark.parametrize("seed", range(12))
def test_calls_fail_at_random(seed: int, tmp_path: Path) -> None:
    """One call in ten fails, in any way; `seed` runs it again."""
    chance = random.Random(seed)
    faults = (*ERRORS, "short", "EINTR")
    swept(
        tmp_path,
        lambda name, count: chance.choice(faults) if chance.random() < 0.1 else None,
        lasting=False,
    )


def test_a_record_of_which_a_part_was_written_is_dropped(tmp_path: Path) -> None:
    """Its whole lines stay, for somebody may have read them; the part of one is cut off, and the session ends there."""
    faulty = Faulty(
        lambda name, count: (
            ("short", "EIO")[count - 5] if name == "write" and count in (5, 6) else None
        )
    )
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    given_to(recorder, story(1))
    until(lambda: recorder._refusal is None)
    given_to(recorder, story(2))
    assert recorder.close()
    told = recorder.statistics()
    assert told.reasons.keys() == {"EIO", "stopped"}
    identity(recorder, home)
    assert verify(home).ok
    [recording] = [read_session(home, session_id(1), segment_ids(home))]
    assert recording.dropped == told.dropped


def test_room_comes_back(tmp_path: Path) -> None:
    """One warning; within a second of room being there a gap tells what is missing, without another record."""
    full = True
    faulty = Faulty(lambda name, count: "ENOSPC" if full and name in ("write", "create") else None)
    home = open_home(tmp_path / "home")
    errors._said.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        recorder = Recorder(home, Options(files=faulty.files))
        given_to(recorder, story(1))
        full = False
        until(lambda: recorder._refusal is None and not recorder._accounts.has_missing())
        given_to(recorder, story(2))
        assert recorder.close()
    [told] = said(warned)
    assert "No space left" in told
    assert recorder.statistics().dropped == 6
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT session_id, sum(records) FROM gaps GROUP BY ALL"
        ).fetchall()
        states = dict(connection.execute("SELECT session_id, incomplete FROM sessions").fetchall())
    assert rows == [(session_id(1), 6)]
    assert states[session_id(2)] is False


def test_a_session_stops_and_the_next_goes_on(tmp_path: Path) -> None:
    """After a failure nothing of its session is written but how it ended; that cannot be frozen."""
    faulty = Faulty(once("write", 6, "EIO"))
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    records = [*story(1), *story(2)]
    given_to(recorder, records[:3])
    until(lambda: recorder._refusal is None)
    given_to(recorder, records[3:])
    assert recorder.close()
    first, second = (read_session(home, session_id(n), segment_ids(home)) for n in (1, 2))
    assert (len(second.exchanges), second.dropped, second.outcome) == (4, 0, "completed")
    assert (first.dropped, first.outcome) == (recorder.statistics().dropped, "completed")
    assert first.dropped >= 3
    identity(recorder, home)
    in_sql(home)


def test_a_segment_that_cannot_be_cut_back_is_left(tmp_path: Path) -> None:
    """Nothing is appended to a part of a line: another segment begins."""
    faulty = Faulty(
        lambda name, count: (
            {("write", 6): "short", ("write", 7): "EIO"}.get((name, count))
            or ("EIO" if name == "truncate" else None)
        )
    )
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    for number in (1, 2):
        given_to(recorder, story(number))
        until(lambda: recorder._refusal is None)
    assert recorder.close()
    assert len(segment_ids(home)) == 2
    assert session_id(2) in reads_back(home)
    identity(recorder, home)


@pytest.mark.parametrize("how", ["deleted", "replaced", "whole home deleted"])
def test_the_directory_goes_away(how: str, tmp_path: Path) -> None:
    """What was in it is gone; it is noticed, and the next session is recorded in the directory that there is."""
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    given_to(recorder, story(1)[:3])
    shutil.rmtree(home.path if how.startswith("whole") else home.segments)
    if how == "replaced":
        home.segments.mkdir(mode=0o700)
    recorder(story(1)[3])
    until(lambda: recorder.is_stopped(session_id(1)))
    given_to(recorder, [story(1)[4], *story(2)])
    assert recorder.close()
    assert session_id(2) in reads_back(existing_home(home.path))
    assert recorder.statistics().reasons == {"deleted": 4, "stopped": 1}


def test_what_was_deleted_counts_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session whose directory goes away as it ends is not counted as written: the statistics, its end and the gaps
    of the next segment say what there is, of the session that had ended before as well.
    """
    monkeypatch.setattr(
        recorders, "SYNC_SECONDS", 600
    )  # no tick sees it before the end of the session does
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    given_to(recorder, [*story(1), *story(2)[:4]])
    shutil.rmtree(home.path)
    given_to(recorder, [*story(2)[4:], *story(3)])
    assert recorder.close()
    told = recorder.statistics()
    assert (told.given, told.written, dict(told.reasons)) == (18, 7, {"deleted": 11})
    identity(recorder, home)
    assert reads_back(home) == {session_id(3)}
    rows = [line.value() for line in lines_of(home) if line.kind == "gaps"]
    missing: Counter[tuple[str, str]] = Counter()
    for row in rows:
        missing[row["session_id"], row["reason"]] += row["records"]
    assert missing == {(session_id(1), "deleted"): 6, (session_id(2), "deleted"): 5}
    in_sql(home)


def test_gaps_that_were_deleted_are_told_again(tmp_path: Path) -> None:
    """What a segment said of gaps is said by the next one when that one is taken away."""
    home, faulty = open_home(tmp_path / "home"), Faulty(once("write", 6, "EIO"))
    recorder = Recorder(home, Options(files=faulty.files))
    given_to(recorder, story(1))
    until(lambda: recorder._refusal is None and not recorder._accounts.has_missing())
    before = recorder.statistics()
    shutil.rmtree(home.segments)
    given_to(recorder, story(2))
    given_to(recorder, story(3))
    assert recorder.close()
    told = recorder.statistics()
    assert told.dropped - before.dropped == told.reasons["deleted"] > 0
    missing = sum(line.value()["records"] for line in lines_of(home) if line.kind == "gaps")
    assert missing == told.dropped
    identity(recorder, home)


def test_a_home_that_was_removed_stays_away(tmp_path: Path) -> None:
    """Where nothing more is recorded it is not made anew, only to say that it is gone; the statistics say it."""
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    given_to(recorder, story(1))
    shutil.rmtree(home.path)
    assert recorder.close()
    assert not home.path.exists()
    assert recorder.statistics().reasons == {"deleted": 6}


@pytest.mark.parametrize("first", ["sync", "write"])
def test_a_failing_disk_is_said_once(first: str, tmp_path: Path) -> None:
    """However it fails, there is one warning, and it claims no loss where nothing was lost."""
    faulty = Faulty()
    home = open_home(tmp_path / "home")
    errors._said.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        recorder = Recorder(home, Options(files=faulty.files))
        faulty.plan = lambda name, count: "EMFILE" if name in (first, "sync_names") else None
        given_to(recorder, story(1))
        until(lambda: faulty.failed)
        faulty.plan = lambda name, count: "EMFILE" if name in ("sync", "create", "write") else None
        failed = faulty.failed
        given_to(recorder, story(2))
        until(lambda: faulty.failed > failed)
        faulty.plan = lambda name, count: None
        assert recorder.close()
    [told] = said(warned)
    assert ("may not survive a power loss" in told) == (first == "sync")
    assert ("a record was not written" in told) == (first == "write")


def test_a_hung_disk_costs_the_agent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue fills to its bound, the rest is dropped and counted, no call waits, and the end waits 2 s."""
    monkeypatch.setattr(recorders, "QUEUE_BYTES", 20_000)
    faulty = Faulty(for_good("write", 5, "hang"))
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    recorder(start(1))
    until(lambda: recorder.statistics().written == 1)
    for number in range(100):
        recorder(tool(1, f"t{number}", "weather", at=T0 + number))
    told = recorder.statistics()
    assert told.given == 101 == told.written + told.dropped + told.waiting
    assert told.reasons["queue_full"] > 50
    until(lambda: recorder._writer.stuck_ns() > 0)
    before = time.monotonic()
    assert recorder.close() is False
    spent = time.monotonic() - before
    faulty.free.set()
    assert recorder._thread is not None
    recorder._thread.join(20)
    assert spent < 5, "it does not wait for as long as it would for a disk that answers"
    told = recorder.statistics()
    assert told.given == told.written + told.dropped + told.waiting


def test_a_slow_sync_does_not_fill_the_queue(tmp_path: Path) -> None:
    """Syncing is done beside writing: while it hangs, records are written."""
    faulty = Faulty(for_good("sync", 1, "hang"))
    home = open_home(tmp_path / "home")
    recorder = Recorder(home, Options(files=faulty.files))
    recorder(start(1))
    until(lambda: faulty.counts["sync"])
    given_to(recorder, story(1)[1:])
    assert recorder.statistics().written == 6
    faulty.free.set()
    assert recorder.close(20)


def test_always_waits_for_the_disk_but_not_for_long(tmp_path: Path) -> None:
    """With `always` what is flushed is durable; where the disk hangs, the wait ends in time and is counted."""
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
    assert recorder.flush(20) is False, "nobody says that it is durable"
    assert recorder.statistics().unsynced == 1
    recorder(end(1))
    assert recorder.close()
    assert len(segment_ids(home)) == 2, "a file that could not be synced is not trusted any more"


class _Uncertain:
    """Raises at one seam of ours."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *given: Any, **named: Any) -> Any:
        raise self.error


ON_THE_WORKER = ("agentobs.recording.facts.interpreter", "agentobs.recording.segment_writer")
SEAMS = [
    "agentobs.recording.facts.interpreter.Interpreter.interpret",
    "agentobs.recording.facts.interpreter.Interpreter.so_far",
    "agentobs.recording.facts.interpreter.Interpreter.forget_bodies",
    "agentobs.recording.segment_writer.Writer.turn",
    "agentobs.recording.segment_writer.Writer.write",
    "agentobs.recording.segment_writer.Writer.sync",
    "agentobs.recording.segment_writer.Writer.seal",
    "agentobs.recording.segment_writer.Writer.is_in_place",
    "agentobs.recording.record_accounts.Accounts.take_missing",
    "agentobs.recording.recorder.weight",
    "agentobs.recording.recorder.session_of",
    "agentobs.recording.recorder.kind_of",
    "agentobs.recording.wire.transport.open_for",
    "agentobs.recording.wire.transport.take_open",
]


@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("error", [RuntimeError("ours"), MemoryError(), SystemExit(1)], ids=repr)
def test_a_fault_of_ours_never_reaches_the_agent(
    seam: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised at any seam of ours ends in the recorder, which goes on with the next session."""
    home = open_home(tmp_path / "home")
    recorder = Recorder(home)
    with monkeypatch.context() as patched:
        patched.setattr(seam, _Uncertain(error))
        for each in story(1):
            if isinstance(error, Exception) or seam.startswith(
                ("agentobs.recording.facts.interpreter", "agentobs.recording.segment_writer")
            ):
                recorder(each)
        recorder.flush(20)
    given_to(recorder, story(2))
    assert recorder.close()
    assert session_id(2) in reads_back(home)
    told = recorder.statistics()
    assert told.given == told.written + told.dropped + told.waiting


# The loop of the agent, with and without.

ANSWERS = [
    message(call("a", "look", where="x"), call("b", "write", what="y")),
    message(call("c", "count", number=1)),
    message(text("Done.")),
]
TOOLS: Tools = (look, write, fetch, count)


_TIMES = re.compile(r"[a-z_]+_ns=\d+")


def events(home: Path | None = None, plan: Plan | None = None) -> list[str]:
    """Return the events of a run of our loop, recorded on a disk that fails as planned, or not recorded."""
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
                # Neighbors run beside each other: who looks at the clock first is chance.
                return [_TIMES.sub("", repr(each)) for each in events_of(provider, tools=TOOLS)]
    finally:
        if recorder is not None:
            agentobs.stop_recorder()
            told = recorder.statistics()
            assert told.given == told.written + told.dropped + told.waiting
            assert told.given > 10


@pytest.fixture(scope="module")
def unrecorded() -> list[str]:
    return events()


def test_recording_changes_nothing_in_the_loop(tmp_path: Path, unrecorded: list[str]) -> None:
    """The events of a run are the same with and without."""
    assert events(tmp_path, lambda name, count: None) == unrecorded


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failing_call_changes_nothing_in_the_loop(
    operation: str, tmp_path: Path, unrecorded: list[str]
) -> None:
    """Whichever call of the write path fails, once or from then on, each event of the run is the same."""
    chance = random.Random(operation)
    for kind in (once, for_good):
        plan = kind(operation, chance.randint(1, 9), chance.choice(ERRORS))
        assert events(tmp_path / kind.__name__, plan) == unrecorded


@pytest.mark.parametrize("seed", range(4))
def test_random_failures_change_nothing_in_the_loop(
    seed: int, tmp_path: Path, unrecorded: list[str]
) -> None:
    """Nor do calls that fail at random."""
    chance = random.Random(seed)
    faults = (*ERRORS, "short", "EINTR")
    plan = lambda name, count: chance.choice(faults) if chance.random() < 0.2 else None  # noqa: E731
    assert events(tmp_path, plan) == unrecorded


def test_calls_outside_every_session_go_on_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the process ends where something of it could not be written; the next call opens another one."""
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
        assert recorder.flush(20)
        faulty.plan = lambda name, count: None
        until(lambda: recorder._refusal is None)
        assert sessions._process_place().session_id != first
    finally:
        assert agentobs.stop_recorder()
    rows = agentobs.query(
        "SELECT incomplete FROM sessions ORDER BY started_ns", home=tmp_path / "home"
    )
    assert rows == [(True,), (False,)]


def test_a_crashed_session_with_a_gap_is_incomplete(tmp_path: Path) -> None:
    """A gap alone marks a session that never ended."""
    home = open_home(tmp_path / "home")
    segment = Segment(home)
    segment.facts.append(
        "attempts", {"session_id": session_id(1), "attempt_id": "a", "outcome": "ok"}
    )
    segment.facts.append("gaps", {"session_id": session_id(1), "reason": "EIO", "records": 3})
    segment.close()
    rows = agentobs.query("SELECT status, dropped, incomplete FROM sessions", home=home.path)
    assert rows == [("crashed", 3, True)]
