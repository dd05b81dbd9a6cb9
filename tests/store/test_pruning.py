"""Pruning: deleted data is deleted everywhere, other data is unchanged, and every later store has the same rows."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentobs import world
from agentobs.cli import cli
from agentobs.errors import RecordingError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    Damage,
    Line,
    content_path,
    facts_path,
    read,
    segment_ids,
)
from agentobs.recording.vault.vault import read_session
from agentobs.store.duckdb import retention
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.duckdb.verification import verify
from agentobs.store.session_lookup import find_session
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    conversation,
    copied,
    everything,
    finish,
    python,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)

ONE, TWO, THREE = (session_id(number) for number in (1, 2, 3))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """An ingested home with three sessions in one segment, and the second session again in another segment; tests use
    copies of it.
    """
    home = a_home(tmp_path_factory.mktemp("made"))
    record(home, [*conversation(1), *conversation(2), *conversation(3, at=T0 + 90 * SECOND)])
    record(home, conversation(2, turns=1))
    ingest(home)
    return home


@pytest.fixture
def home(made: Home, tmp_path: Path) -> Home:
    return copied(made, tmp_path)


def holds(home: Home, session: str) -> list[str]:
    """Return the kinds of lines that contain data of a session."""
    found = []
    for segment_id in segment_ids(home):
        for path in (facts_path(home, segment_id), content_path(home, segment_id)):
            try:
                items = list(read(path))
            except FileNotFoundError:
                continue
            assert not [item for item in items if isinstance(item, Damage)]
            ours = [i for i in items if isinstance(i, Line) and session.encode() in i.payload]
            found += [f"{path.suffix} {line.kind}" for line in ours]
    return sorted({*found})


def of_others(rows: dict[str, list], *gone: str) -> dict[str, list]:
    """Return the rows without those of some sessions."""
    return {
        table: [row for row in found if not any(each in repr(row) for each in gone)]
        for table, found in rows.items()
    }


def rebuilt(home: Home) -> dict[str, list]:
    """Return the rows of a store that was rebuilt from the segments."""
    home.database.unlink()
    home.manifest.unlink()
    assert ingest(home).damaged_moved_to is None
    with connect(home, ingest=False) as connection:
        prices = connection.execute("SELECT model FROM prices ORDER BY ALL").fetchall()
        marks = connection.execute("FROM segments ORDER BY ALL").fetchall()
        return everything(connection) | {"prices": prices, "segments": marks}


@pytest.mark.slow
@pytest.mark.parametrize("clock_change", [0, -3_600 * SECOND])
def test_a_pruned_session_is_deleted_everywhere(
    home: Home, monkeypatch: pytest.MonkeyPatch, clock_change: int
) -> None:
    """If a session in the middle of a segment is pruned, no data of it is left, not even in a block of the published
    file, whether or not the clock was set back after it was recorded.

    Other sessions are complete, and a rebuilt store has the same rows.
    """
    now = world.now()
    monkeypatch.setattr(world, "now", lambda: now + clock_change)
    with connect(home) as connection:
        before = everything(connection)
    others = [read_session(home, each, segment_ids(home)) for each in (ONE, THREE)]
    report = prune(home, sessions=[TWO])
    assert [each.session_id for each in report.chosen] == [TWO]
    assert holds(home, TWO) == [".content pruned", ".facts pruned", ".facts prunings"]
    assert home.database.read_bytes().count(TWO.encode()) <= 2  # the row of the pruning
    with connect(home, ingest=False) as connection:
        after = everything(connection)
        prices = connection.execute("SELECT model FROM prices ORDER BY ALL").fetchall()
        marks = connection.execute("FROM segments ORDER BY ALL").fetchall()
    assert of_others(after, TWO) == of_others(before, TWO)
    assert [row[2:5:2] for row in after["prunings"]] == [(TWO, "all")]
    assert verify(home).findings == []
    assert [read_session(home, each, segment_ids(home)) for each in (ONE, THREE)] == others
    assert rebuilt(home) == after | {"prices": prices, "segments": marks}
    assert len(segment_ids(home)) == 2  # the segment without other records is deleted
    assert prune(home, sessions=[TWO]).chosen == []


@pytest.mark.slow
def test_pruning_only_content(home: Home) -> None:
    """If only content is pruned, costs and events are kept, and a replay reports what is missing, since when, and a
    remedy.
    """
    with connect(home) as connection:
        before = everything(connection)
    prune(home, sessions=[ONE], what="content")
    with connect(home, ingest=False) as connection:
        after = everything(connection)
    assert {**after, "prunings": []} == {**before, "prunings": []}
    assert holds(home, ONE)[0] == ".content pruned"
    assert verify(home).findings == []
    with pytest.raises(
        RecordingError,
        match=r"content of session .* was pruned on \d{4}.*agentobs show still lists its facts",
    ):
        read_session(home, ONE, segment_ids(home))
    assert read_session(home, THREE, segment_ids(home)).outcome == "completed"
    marks = {"prices", "segments"}
    assert {k: v for k, v in rebuilt(home).items() if k not in marks} == after
    assert prune(home, sessions=[ONE], what="content").chosen == []
    assert [each.session_id for each in prune(home, sessions=[ONE]).chosen] == [ONE]


@pytest.mark.slow
def test_looking_up_a_pruned_session(home: Home) -> None:
    """If a pruned session is looked up by any part of its ID, the error states that it was pruned, and when."""
    prune(home, sessions=[TWO])
    with connect(home) as connection:
        for text in (TWO, TWO[:8], TWO[-6:]):
            with pytest.raises(UsageError, match=rf"session {TWO} was pruned on 20\d\d-\d\d-\d\d"):
                find_session(DuckStore(connection, home), text)
        assert find_session(DuckStore(connection, home), ONE) == ONE


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb import generations, ingest, retention
from agentobs.store.duckdb import segment_compression, segment_rewrite

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

module, name = sys.argv[2].split(".")
setattr(globals()[module], name, die)
retention.prune(Home(Path(sys.argv[1])), sessions=sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    mark_all_but_first(
        [
            "retention.ingest",  # the pruning is recorded, nothing is deleted
            "segment_rewrite._put",  # before the first file is replaced
            "segment_compression.sync_directory",  # a file was replaced, the plain one may still be there
            "segment_rewrite._delete_rows",  # the segments are rewritten
            "ingest._compacted",  # the rows are deleted
            "generations.sync_directory",  # published
        ],
        pytest.mark.crash,
    ),
)
def test_a_kill_at_any_step(home: Home, place: str) -> None:
    """If pruning is killed at any step, the other sessions can be read immediately, and the next ingest completes the
    pruning.
    """
    with connect(home) as connection:
        before = everything(connection)
    process = python(KILLED_AT, home.path, place, TWO)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    assert read_session(home, ONE, segment_ids(home)).outcome == "completed"
    with connect(home, ingest=False) as connection:
        assert of_others(everything(connection), TWO) == of_others(before, TWO)
    report = verify(home)
    assert report.findings == []
    is_done = place == "generations.sync_directory"
    assert [note[: 8 + len(TWO)] for note in report.notes] == (
        [] if is_done else [f"session {TWO}"]
    )
    if place in ("segment_rewrite._delete_rows", "ingest._compacted"):
        with pytest.raises(RecordingError, match=rf"session {TWO} was pruned on 20\d\d"):
            read_session(home, TWO, segment_ids(home))
    ingest(home)
    assert holds(home, TWO) == [".content pruned", ".facts pruned", ".facts prunings"]
    assert verify(home).findings == []
    with connect(home, ingest=False) as connection:
        after = everything(connection)
    assert of_others(after, TWO) == of_others(before, TWO)
    assert not any(TWO in repr(row) for row in after["attempts"])


@pytest.mark.slow
def test_the_oldest_sessions_are_deleted_first(home: Home) -> None:
    """Pruning by age deletes sessions that ended before a time; pruning by size deletes the oldest sessions first.

    By size, sessions are deleted until the home is small enough.
    """
    dry = prune(home, before_ns=T0 + 61 * SECOND, dry_run=True)
    assert [each.session_id for each in dry.chosen] == [ONE, TWO]
    assert dry.after is None
    assert dry.lines()[0].startswith("would prune 2 sessions, about ")
    assert holds(home, ONE)
    assert prune(home, keep_bytes=10**9).chosen == []
    small = prune(home, keep_bytes=dry.before - 1, dry_run=True)
    assert [each.session_id for each in small.chosen] == [ONE]
    assert [each.session_id for each in prune(home, before_ns=T0 + 61 * SECOND).chosen] == [
        ONE,
        TWO,
    ]
    with connect(home) as connection:
        assert connection.execute("SELECT session_id FROM sessions").fetchall() == [(THREE,)]


@pytest.mark.slow
def test_running_sessions_are_skipped(home: Home) -> None:
    """A session with an open segment is reported and not changed."""
    segment = write_facts(
        home, [start(9).start, usage_row(1, session_id=session_id(9))], close=False
    )
    before = segment.facts.path.read_bytes()
    report = prune(home, sessions=[session_id(9), ONE])
    assert report.running == [session_id(9)]
    assert [each.session_id for each in report.chosen] == [ONE]
    assert segment.facts.path.read_bytes() == before
    segment.close()
    assert [each.session_id for each in prune(home, sessions=[session_id(9)]).chosen] == [
        session_id(9)
    ]


@pytest.mark.slow
def test_the_prune_command(home: Home) -> None:
    """The `prune` command accepts ages, sizes and IDs, reports what it deleted, and rejects unclear input."""
    results = home.path / "sessions" / ONE / "results"
    results.mkdir(parents=True)
    (results / "1-toolu_1.txt").write_text("long")

    def run(*arguments: str):
        return CliRunner().invoke(cli, ["--home", str(home.path), "prune", *arguments])

    dry_output = run("--session", ONE[:8], "--dry-run").output
    assert dry_output.startswith("would prune 1 sessions, about ")
    assert run("--session", ONE[:8]).output.startswith("pruned 1 sessions, about ")
    assert not results.exists()
    assert run("--older-than", "1d", "--content-only").output.startswith(
        "pruned 2 sessions: content only"
    )
    assert "Pass --older-than" in str(run().exception)
    assert run("--keep-bytes", "much").exit_code == 2
    assert run("--keep-bytes", "1KB").exit_code == 0
    with connect(home) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


@pytest.mark.slow
def test_the_warning_about_a_large_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the home exceeds a size, the ingest and sessions commands print one warning with advice; otherwise, they print
    no warning.
    """
    for size, times in (("1000", 1), ("1000000000", 0)):
        monkeypatch.setenv("AGENTOBS_WARN_BYTES", size)
        for command in ("ingest", "sessions"):
            result = CliRunner().invoke(cli, ["--home", str(home.path), command])
            assert result.exit_code == 0
            assert result.stderr.count("agentobs prune --older-than 30d") == times


WRITING = """
import sys
from pathlib import Path
from agentobs.recording.journal.home import open_home
from tests.store.recordings import conversation, record
home = open_home(sys.argv[1])
for number in range(100, 108):
    record(home, conversation(number))
"""
PRUNING = """
import sys
from pathlib import Path
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.schema import cached_views
for session in sys.argv[2:]:
    prune(Home(Path(sys.argv[1])), sessions=[session])
"""


@pytest.mark.crash
def test_readers_during_pruning(home: Home) -> None:
    """While one process writes and another one prunes, readers get no lock errors and see no damage.

    In the end, the other sessions are complete.
    """
    workers = [python(WRITING, home.path), python(PRUNING, home.path, ONE, TWO)]
    while any(worker.poll() is None for worker in workers):
        with connect(home) as connection:
            marks = (
                "SELECT sum(damaged_records)::BIGINT, sum(missing_records)::BIGINT FROM segments"
            )
            assert connection.execute(marks).fetchall() == [(0, 0)]
            kept = "SELECT count(*) FROM attempts WHERE session_id = ?"
            assert connection.execute(kept, [THREE]).fetchone() == (3,)
    for worker in workers:
        finish(worker)
    ingest(home)
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT count(*), count(*) FILTER (status = 'completed') FROM sessions"
        )
        assert rows.fetchone() == (9, 9)
    assert verify(home).findings == []


@pytest.mark.slow
def test_records_written_during_pruning(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that another process writes between the selection and the pruning is kept while that process runs.

    It does not count as damage, and is deleted after the process has ended; a rebuilt store has the same rows.
    """
    late = []

    def decide(*arguments: Any) -> None:
        row = usage_row(77, session_id=TWO)
        late.append(write_facts(home, [row], close=False))
        decided(*arguments)

    decided = retention._decide
    monkeypatch.setattr(retention, "_decide", decide)
    prune(home, sessions=[TWO])
    count = "SELECT count(*) FROM usage WHERE session_id = ?"
    with connect(home) as connection:
        assert connection.execute(count, [TWO]).fetchone() == (1,)
    report = verify(home)
    assert (report.findings, len(report.notes)) == ([], 1)
    assert "was pruned; it is still open" in report.notes[0]
    late[0].close()
    ingest(home)
    with connect(home, ingest=False) as connection:
        assert connection.execute(count, [TWO]).fetchone() == (0,)
        after = everything(connection)
    assert ".facts usage" not in holds(home, TWO)
    assert verify(home).lines()[0].endswith("all intact")
    marks = {"prices", "segments"}
    assert {k: v for k, v in rebuilt(home).items() if k not in marks} == after
