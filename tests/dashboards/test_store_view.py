"""Reading a store while agents write to it: each request reads one state, and requests do not wait for each other."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from agentobs.errors import AgentobsError, DamagedError, ForeignError, HomeError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.recorder import Recorder
from agentobs.sink import Record
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.port import QueryError, Store
from dashboards.app import store_view
from dashboards.app.store_view import MOST_OPEN, Reader, Row, View
from tests.dashboards.live_app import ReaderWithoutFindings, serving
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    conversation,
    end,
    python,
    record,
    session_id,
    start,
)
from tests.store.wire_conversations import WireConversation


@pytest.fixture(autouse=True)
def check_at_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for new data at every request, without pauses between checks."""
    monkeypatch.setattr(store_view, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(store_view, "MOST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(store_view, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(store_view, "CHECK_SECONDS", 60.0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return a_home(tmp_path)


@pytest.fixture
def reader(home: Home) -> Iterator[Reader]:
    with ReaderWithoutFindings(home) as made:
        yield made


@pytest.fixture
def complete_reader(home: Home) -> Iterator[Reader]:
    """A reader that also computes failure signatures."""
    with Reader(home) as made:
        yield made


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition; the test's timeout limits the wait."""
    while not holds():
        time.sleep(0.03)


def select(view: View, sql: str) -> list[Row]:
    """Return the rows of a statement."""
    answer = view.store.sql(sql)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def names(view: View) -> list[str]:
    return [row["name"] for row in select(view, "SELECT name FROM app.listing ORDER BY name")]


def seen(reader: Reader) -> list[str]:
    with reader.view() as view:
        return names(view)


def fired(view: View) -> set[tuple[str, str]]:
    rows = select(view, "FROM app.found_signatures")
    return {(row["session_id"], row["signature"]) for row in rows}


def looping_session(number: int) -> list[Record]:
    """Return a session that calls the same tool with the same input again and again."""
    talk = WireConversation(number)
    for _ in range(4):
        [call] = talk.calls(("look", {"at": "the same thing, each time anew"}))
        talk.result(call)
    talk.says("done")
    return talk.whole()


@pytest.mark.slow
def test_a_view_does_not_change(home: Home, reader: Reader) -> None:
    """The view of a page does not change while data is recorded.

    A later view contains this data, whether or not it was ingested.
    """
    record(home, conversation(1, name="first"))
    with reader.view() as view:
        assert names(view) == ["first"]
        before = view.revision
        record(home, conversation(2, name="second"))
        ingest(home)
        record(home, conversation(3, name="third"))
        with reader.view() as later:
            assert names(later) == ["first", "second", "third"]
            assert later.revision > before
        assert names(view) == ["first"]
        assert len(view.named("sessions")) == 1
    assert reader.revision() > before


@pytest.mark.slow
def test_the_revision_changes_only_with_new_data(home: Home, complete_reader: Reader) -> None:
    """The revision changes if data is recorded, and stays the same otherwise."""
    reader = complete_reader
    record(home, conversation(1))
    until(lambda: seen(reader) == ["story"])

    def is_whole() -> bool:
        with reader.view() as view:
            return view.has_signatures

    until(is_whole)
    before = reader.revision()
    for _ in range(5):
        assert seen(reader) == ["story"]
    assert reader.revision() == before
    record(home, conversation(2))
    until(lambda: reader.revision() != before)


@pytest.mark.slow
def test_a_running_session_is_visible(home: Home, reader: Reader) -> None:
    """A running session is listed as running with each turn that was written, then with its end."""
    recorder = Recorder(home)
    recorder(start(1))
    for turn in (1, 2, 3):
        recorder(attempt(1, turn))
        recorder.flush(30)

        def shows(turn: int = turn) -> bool:
            with reader.view() as view:
                rows = select(view, "SELECT status, turns FROM app.listing")
            return rows == [{"status": "running", "turns": turn}]

        until(shows)
    recorder(end(1))
    assert recorder.close(30)
    with reader.view() as view:
        assert select(view, "SELECT status FROM app.listing") == [{"status": "completed"}]


@pytest.mark.slow
def test_a_killed_process_is_noticed(home: Home, reader: Reader) -> None:
    """The session of a killed process is shown as crashed, although the process could not write anything."""
    code = """
import sys, time, agentobs
from agentobs.recording.session import start_recorder
recorder = start_recorder(sys.argv[1])
with agentobs.session("doomed"):
    recorder.flush(30)
    print("running", flush=True)
    time.sleep(600)
"""
    process = python(code, home.path)
    try:
        assert process.stdout
        assert process.stdout.readline() == "running\n"

        def status() -> list[str]:
            with reader.view() as view:
                return [row["status"] for row in select(view, "SELECT status FROM app.listing")]

        until(lambda: status() == ["running"])
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        until(lambda: status() == ["crashed"])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_requests_do_not_wait_for_a_slow_opening(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a store is being opened slowly, requests use the previous state."""
    record(home, conversation(1, name="first"))
    held, begun = threading.Event(), threading.Event()
    held.set()
    really = open_store

    def slowly(*arguments: object, **options: object) -> Store:
        begun.set()
        assert held.wait(60)
        return really(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store_view, "open_store", slowly)
    monkeypatch.setattr(store_view, "CHECK_SECONDS", 0.01)
    with ReaderWithoutFindings(home) as reader:
        assert seen(reader) == ["first"]
        held.clear()
        begun.clear()
        record(home, conversation(2, name="second"))
        until(lambda: bool(reader.revision()) and begun.is_set())
        for _ in range(20):
            assert seen(reader) == ["first"]
        held.set()
        until(lambda: seen(reader) == ["first", "second"])


@pytest.mark.slow
def test_old_states_are_bounded_and_closed_by_their_last_reader(home: Home, reader: Reader) -> None:
    """At most MOST_OPEN connections are open, and each is closed with its last reader."""
    record(home, conversation(1, name="0"))
    contexts = []
    views = []
    for number in range(MOST_OPEN + 2):
        contexts.append(reader.view())
        views.append(contexts[-1].__enter__())
        record(home, conversation(number + 2, name=f"{number + 1}"))
        with reader.view():
            pass
    states = {id(view.store): len(names(view)) for view in views}
    assert len(set(states.values())) == MOST_OPEN
    assert len({view.revision for view in views}) == MOST_OPEN
    for context in contexts:
        context.__exit__(None, None, None)
    for view in views:
        with pytest.raises(QueryError):
            names(view)
    assert len(seen(reader)) == MOST_OPEN + 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        ("gone", HomeError),
        ("foreign", ForeignError),
        ("newer", ForeignError),
    ],
)
def test_an_unreadable_store_is_an_error_until_it_is_readable(
    home: Home, reader: Reader, tmp_path: Path, harm: str, kind: type[AgentobsError]
) -> None:
    """While the store cannot be read, each request gets one clear error; afterwards it gets the sessions."""
    record(home, conversation(1, name="first"))
    ingest(home)
    assert seen(reader) == ["first"]
    kept = tmp_path / "kept"
    shutil.copytree(home.path, kept)
    match harm:
        case "gone":
            shutil.rmtree(home.path)
        case "foreign":
            home.database.unlink()
            home.manifest.unlink()
            home.database.write_bytes(b"nothing that we wrote")
        case "newer":
            made = tmp_path / "newer.duckdb"
            made.write_bytes(home.database.read_bytes())
            with duckdb.connect(str(made)) as changed:
                changed.execute("UPDATE meta SET value = '9999' WHERE key = 'format'")
            home.manifest.unlink()
            made.replace(home.database)
    before = reader.revision()

    def fails() -> bool:
        try:
            seen(reader)
        except kind:
            return True
        return False

    until(fails)
    assert reader.revision() != before
    shutil.rmtree(home.path, ignore_errors=True)
    shutil.move(kept, home.path)

    def reads() -> bool:
        try:
            return seen(reader) == ["first"]
        except kind:
            return False

    until(reads)


@pytest.mark.slow
def test_a_damaged_published_file_is_replaced_by_the_segments(home: Home, reader: Reader) -> None:
    """If the published file is damaged, the data in the segments is shown."""
    record(home, conversation(1, name="first"))
    ingest(home)
    home.database.chmod(0o600)
    home.database.write_bytes(home.database.read_bytes()[:100])
    record(home, conversation(2, name="second"))
    until(lambda: seen(reader) == ["first", "second"])


def test_a_home_without_sessions_is_not_an_error(reader: Reader) -> None:
    """An empty home has an empty list."""
    with reader.view() as view:
        assert names(view) == []
        assert view.named("cost_by_day") == []


@pytest.mark.slow
def test_signatures_are_computed_last_and_kept(
    home: Home, complete_reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signatures equal those of the store's query, and are kept for sessions that did not change."""
    reader = complete_reader
    record(home, [*looping_session(1), *conversation(2)])

    def signatures() -> set[tuple[str, str]]:
        """Wait for the signatures of the current state, which may be newer than that of the last call."""
        while True:
            with reader.view() as view:
                if view.has_signatures:
                    return fired(view)
            time.sleep(0.03)

    with connect(home) as store:
        rows = store.execute("SELECT DISTINCT session_id, signature FROM diagnoses").fetchall()
    until(lambda: len(signatures()) >= len(rows))
    assert signatures() == set(rows)
    assert (session_id(1), "repeated_calls") in set(rows)
    asked: list[list[str]] = []
    really = DuckStore.complete_findings

    def counted(cursor: DuckStore) -> bool:
        sql = "SELECT session_id FROM app.listing ANTI JOIN app.checked USING (fingerprint) ORDER BY ALL"
        asked.append([row[0] for row in cursor.sql(sql).rows])
        return really(cursor)

    monkeypatch.setattr(DuckStore, "complete_findings", counted)
    record(home, looping_session(3))
    until(lambda: len(signatures()) > len(rows))
    assert [sessions for sessions in asked if sessions] == [[session_id(3)]]
    with connect(home) as store:
        rows = store.execute("SELECT DISTINCT session_id, signature FROM diagnoses").fetchall()
    assert signatures() == set(rows)


@pytest.mark.slow
def test_a_closed_reader_raises_an_error(home: Home) -> None:
    """After a reader was closed, requests get an error instead of waiting forever."""
    record(home, conversation(1))
    reader = Reader(home)
    assert seen(reader) == ["story"]
    reader.close()
    reader.close()
    with pytest.raises(UsageError, match="shutting down"), reader.view():
        pass


@pytest.mark.slow
def test_queries_are_interrupted_when_the_application_ends(home: Home) -> None:
    """An endless query is interrupted when the application ends."""
    record(home, conversation(1))
    stopped: list[Exception] = []
    asking = threading.Event()
    with Reader(home) as reader:

        def ask() -> None:
            try:
                with reader.view() as view:
                    asking.set()
                    select(
                        view,
                        "SELECT count(*) FROM range(10_000_000) a, range(10_000_000) b WHERE hash(a, b) = 7",
                    )
            except QueryError as error:
                stopped.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert asking.wait(30)
        while thread.is_alive():
            reader.interrupt()
            thread.join(0.05)
    assert isinstance(stopped[0].__cause__, duckdb.InterruptException)


@pytest.mark.slow
def test_concurrent_writers_and_readers(home: Home) -> None:
    """Agents that record concurrently lose nothing, each page gets a response, and finally all sessions are listed."""
    record(home, conversation(1, name="agent"))
    statuses: list[int] = []
    sessions, done = 60, threading.Event()

    def write(numbers: range) -> None:
        recorder = Recorder(home)
        for number in numbers:
            for each in conversation(number, name="agent", at=T0 + number * SECOND):
                recorder(each)
            recorder.flush(30)
        assert recorder.close(30)
        assert recorder.statistics().dropped == 0
        written.append(numbers)

    written: list[range] = []
    with serving(home, findings=True) as client:

        def read() -> None:
            while not done.is_set():
                for path in ("/", "/?q=agent&sort=cost", "/revision"):
                    statuses.append(client.get(path).status)

        readers = [threading.Thread(target=read) for _ in range(2)]
        parts = (range(2, sessions // 2 + 1), range(sessions // 2 + 1, sessions + 1))
        writers = [threading.Thread(target=write, args=(part,)) for part in parts]
        for thread in (*readers, *writers):
            thread.start()
        for thread in writers:
            thread.join(60)
        until(lambda: len(statuses) > 3)
        done.set()
        for thread in readers:
            thread.join(60)
        assert len(written) == 2
        assert set(statuses) == {200}
        until(lambda: f"of {sessions}" in client.get("/").words)


def test_unexpected_errors_become_agentobs_errors(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error while a store is opened becomes one sentence, without the text of the original error."""

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the recordings")

    monkeypatch.setattr(store_view, "open_store", fails)
    record(home, conversation(1))
    with Reader(home) as reader, pytest.raises(DamagedError) as result, reader.view():
        pass
    assert result.value.found == "cannot be read: RuntimeError"


@pytest.mark.slow
def test_an_error_is_shown_until_the_next_check_succeeds(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a check is shown on the pages until a check succeeds, which makes new data visible."""
    record(home, looping_session(1))
    faults: list[Exception] = [RuntimeError("a-secret-value")]

    really = DuckStore.complete_findings

    def report_update(store: DuckStore) -> bool:
        if faults:
            raise faults[0]
        return really(store)

    def said() -> str:
        try:
            return ", ".join(seen(made))
        except DamagedError as error:
            return str(error)

    monkeypatch.setattr(DuckStore, "complete_findings", report_update)
    with Reader(home) as made:
        until(lambda: "cannot be read: RuntimeError" in said())
        assert "a-secret-value" not in said()
        before = made.revision()
        faults.clear()
        record(home, conversation(2, name="second"))
        until(lambda: "second" in said())
        assert made.revision() > before
