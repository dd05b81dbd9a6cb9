"""The live view: connections see everything that was recorded, and cannot access other resources."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import agentobs
from agentobs.errors import HomeError, UsageError
from agentobs.recording.recorder import Recorder
from agentobs.store.duckdb.connection import NEW_BYTES, NEW_SECONDS, SHARE, connect, is_due, select
from agentobs.store.duckdb.generations import Generation, quick_current
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.sql_worker import query
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    conversation,
    counts,
    end,
    finish,
    plain,
    python,
    record,
    start,
    usage_row,
    write_facts,
)


@pytest.mark.slow
def test_the_live_tail_is_seen_without_ingest(tmp_path: Path) -> None:
    """A new reader sees every record that a running recorder has acknowledged, whether or not it is published."""
    home = a_home(tmp_path)
    recorder = Recorder(home)
    recorder(start(1))
    for turn in range(1, 6):
        recorder(attempt(1, turn))
        assert recorder.flush()
        with connect(home, ingest=turn == 3) as connection:
            assert counts(connection)["attempts"] == turn
            sql = "SELECT status, turns, cost_usd > 0, unpriced_calls FROM sessions"
            assert connection.execute(sql).fetchall() == [("running", turn, True, 0)]
    with plain(home) as connection:
        assert counts(connection)["attempts"] == 3
    recorder(end(1))
    assert recorder.close()
    with connect(home, ingest=False) as connection:
        sql = "SELECT status, attempts FROM sessions"
        assert connection.execute(sql).fetchall() == [("completed", 5)]


RECORDING = """
import sys
from pathlib import Path
from agentobs.recording.journal.home import open_home
from agentobs.recording.recorder import Recorder
from tests.store.recordings import attempt, end, start

recorder = Recorder(open_home(sys.argv[1]))
number = int(sys.argv[2])
recorder(start(number))
for turn in range(1, 121):
    recorder(attempt(number, turn, content=None))
    assert recorder.flush(30)
    print(turn, flush=True)
recorder(end(number))
assert recorder.close(30)
"""
INGESTING = """
import sys
from agentobs.recording.journal.home import open_home
from agentobs.store.duckdb.ingest import ingest

home = open_home(sys.argv[1])
while not (home.path / "stop").exists():
    ingest(home)
"""
ASKING = """
import duckdb, sys
from pathlib import Path

path, last = Path(sys.argv[1]), 0
while not (path / "stop").exists():
    if (path / "agentobs.duckdb").exists():
        with duckdb.connect(str(path / "agentobs.duckdb"), read_only=True) as connection:
            [found] = connection.execute("SELECT count(*) FROM attempts").fetchone()
            assert found >= last, (found, last)
            last = found
print(last)
"""


@pytest.mark.crash
def test_counts_never_decrease(tmp_path: Path) -> None:
    """While other processes record and ingest, every query returns at least all records that were acknowledged before
    it.

    Two processes record, one ingests, a plain DuckDB client reads, and no process gets an error.
    """
    home = a_home(tmp_path)
    recording = [python(RECORDING, home.path, number) for number in (1, 2)]
    ingesting, asking = python(INGESTING, home.path), python(ASKING, home.path)
    acknowledged = dict.fromkeys(recording, 0)
    last = 0
    while any(process.poll() is None for process in recording):
        for process in recording:
            assert process.stdout
            for _ in range(12):
                if line := process.stdout.readline():
                    acknowledged[process] = int(line)
        for with_ingest in (False, True):
            with connect(home, ingest=with_ingest) as connection:
                found = counts(connection)["attempts"]
            assert found >= max(last, sum(acknowledged.values()))
            last = found
    (home.path / "stop").touch()
    for process in (*recording, ingesting, asking):
        finish(process)
    ingest(home)
    with plain(home) as connection:
        assert counts(connection)["attempts"] == 240
        sql = "SELECT status, turns, incomplete FROM sessions"
        assert connection.execute(sql).fetchall() == [("completed", 120, False)] * 2


CRASHING = """
import os, signal, sys
from agentobs.recording.journal.home import open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.facts import SpanStart
from agentobs.records.labels import Label
from tests.store.recordings import T0, attempt, session_id, start

recorder = Recorder(open_home(sys.argv[1]))
recorder(start(1))
recorder(SpanStart(session_id(1), session_id(1), "a" * 16, None, "main", Label("agent"), None, T0))
recorder(attempt(1, 1))
assert recorder.flush()
print("ready", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_crashed_session(tmp_path: Path) -> None:
    """A session is running as long as its process runs; after the process was killed, the session is crashed and its
    open span is orphaned.
    """
    home = a_home(tmp_path)
    process = python(CRASHING, home.path, stdin=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    ingest(home)
    sessions = "SELECT status, ended_ns, attempts, incomplete FROM sessions"
    spans = "SELECT status FROM spans WHERE name = 'agent'"
    with connect(home, ingest=False) as connection:
        assert connection.execute(sessions).fetchall() == [("running", None, 1, False)]
        assert connection.execute(spans).fetchall() == [("open",)]
    process.communicate("")
    assert process.returncode == -signal.SIGKILL
    with connect(home, ingest=False) as connection:
        assert connection.execute(sessions).fetchall() == [("crashed", None, 1, False)]
        assert connection.execute(spans).fetchall() == [("orphaned",)]
    with plain(home) as connection:
        assert connection.execute(sessions).fetchall() == [("running", None, 1, False)]
    ingest(home)
    with plain(home) as connection:
        assert connection.execute(sessions).fetchall() == [("crashed", None, 1, False)]


READING = """
import os, sys
from pathlib import Path
import duckdb, agentobs.ledger.price_list
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connect

# The superuser can write anywhere, so the process changes to the user `nobody` if it runs as root. The path is relative
# because `nobody` cannot access the parent directories.
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    for root, folders, files in os.walk("."):
        for name in (*folders, *files, "."):
            os.chown(os.path.join(root, name), 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
try:
    open("home/probe", "w")
except OSError:
    with connect(Home(Path("home"))) as connection:
        sql = "SELECT status, turns, cost_usd > 0 FROM sessions ORDER BY ALL"
        print(connection.execute(sql).fetchall())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ingested", [True, False])
def test_a_read_only_home(tmp_path: Path, ingested: bool) -> None:
    """In a read-only home, readers see all records, from the published file and the tail."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    if ingested:
        ingest(home)
    record(home, conversation(2, turns=2))
    for path in (home.segments, home.path):
        path.chmod(0o500)
    try:
        out = finish(python(READING, tmp_path))
    finally:
        for path in (home.path, home.segments):
            path.chmod(0o700)
    assert out == "[('completed', 2, True), ('completed', 3, True)]\n"


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    home = a_home(tmp_path_factory.mktemp("locked"))
    record(home, conversation(1))
    connection = connect(home)
    yield connection
    connection.close()


FORBIDDEN = [
    "COPY (SELECT 1) TO '{tmp}/out.csv'",
    "EXPORT DATABASE '{tmp}/out'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_parquet('https://example.invalid/x')",
    "SELECT getenv('HOME')",
    "SELECT * FROM python_variable",
    "ATTACH '{tmp}/other.duckdb'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "IMPORT DATABASE '{tmp}'",
    "SET threads = 1",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET memory_limit",
    "SET python_enable_replacements = true",
    "PRAGMA enable_profiling = 'json'",
    "SET profiling_output = '{tmp}/profile'",
    "SET log_query_path = '{tmp}/queries'",
    "CALL enable_logging(storage = 'file', storage_path = '{tmp}/logs')",
    "INSERT INTO published.main.attempts (attempt_id) VALUES ('x')",
    "CREATE TABLE published.main.more (a INTEGER)",
]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_locked_down(connection: duckdb.DuckDBPyConnection, tmp_path: Path, sql: str) -> None:
    """No statement can access files, the network, extensions, settings or variables of the program."""
    python_variable = connection  # noqa: F841  # what a scan of variables would find
    with pytest.raises(duckdb.Error):
        connection.execute(sql.format(tmp=tmp_path)).fetchall()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW sessions",
        "DELETE FROM segments",
        "CREATE TABLE t (a INTEGER)",
        "DROP VIEW sessions",
        "PRAGMA database_list",
        "ATTACH ':memory:' AS other",
        "DETACH published",
        "PREPARE p AS SELECT 1",
        "EXPLAIN ANALYZE DELETE FROM segments",
        "SET VARIABLE a = 1",
        "CALL pragma_version()",
        "BEGIN",
    ],
)
def test_select_accepts_one_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """`select` runs one SELECT statement, and refuses anything else without running it."""
    with pytest.raises(UsageError, match="expected exactly one SELECT statement"):
        select(connection, sql)


def test_select_accepts_all_kinds_of_queries(connection: duckdb.DuckDBPyConnection) -> None:
    """`select` accepts WITH, FROM, DESCRIBE and SUMMARIZE, and binds parameters by position or by name."""
    assert select(connection, "WITH a AS (SELECT 1 AS b) FROM a").fetchall() == [(1,)]
    described = [row[0] for row in select(connection, "DESCRIBE sessions").fetchall()]
    assert described == [
        column[0] for column in select(connection, "FROM sessions").description or ()
    ]
    assert select(connection, "SUMMARIZE turns").fetchall()
    assert select(connection, "SELECT ? + ?", [1, 2]).fetchall() == [(3,)]
    one = select(
        connection, "SELECT name AS called FROM sessions WHERE name = $name;", {"name": "story"}
    )
    assert [column[0] for column in one.description] == ["called"]
    assert one.fetchall() == [("story",)]


@pytest.mark.slow
def test_the_public_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`agentobs.query` and `agentobs.connect` find the home in the same way as the recorder."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    assert agentobs.query("SELECT turns FROM sessions", home=home.path) == [(3,)]
    monkeypatch.setenv("AGENTOBS_HOME", str(home.path))
    assert query("SELECT turns FROM sessions WHERE turns > ?", [2]) == [(3,)]
    with agentobs.connect() as connection:
        assert counts(connection)["attempts"] == 3
    with pytest.raises(HomeError, match="no recordings found"):
        agentobs.connect(tmp_path / "nowhere")


def test_an_empty_home(tmp_path: Path) -> None:
    """A home without recordings has all tables and views, without rows."""
    home = a_home(tmp_path)
    with connect(home) as connection:
        assert set(counts(connection).values()) == {0}
        assert connection.execute("FROM sessions").fetchall() == []
    assert not home.database.exists()
    assert ingest(home).published
    with connect(home) as connection:
        assert connection.execute("FROM costs").fetchall() == []


def test_when_an_ingest_is_due() -> None:
    """An ingest is due when the tail has about 5,000 records or is 10 seconds old, and later if the published file is
    large.
    """
    small = Generation(1, 1_000_000, "", 0, T0, 0)
    large = Generation(1, 640 * 1024 * 1024, "", 0, T0, 0)
    late = T0 + NEW_SECONDS * SECOND
    assert not is_due(small, 0, T0 + 10**18)
    assert not is_due(small, 1, late - 1)
    assert is_due(small, 1, late)
    assert not is_due(small, NEW_BYTES - 1, T0)
    assert is_due(small, NEW_BYTES, T0)
    assert not is_due(large, NEW_BYTES, late)
    assert is_due(large, large.bytes // SHARE, T0)
    assert is_due(large, 1, T0 + 10 * NEW_SECONDS * SECOND)


@pytest.mark.slow
def test_a_reader_ingests_a_long_tail(tmp_path: Path) -> None:
    """A reader that finds a long tail ingests it; a short tail is only read."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    connect(home).close()
    before = quick_current(home)
    assert before is not None
    write_facts(home, [usage_row(1)])
    connect(home).close()
    assert quick_current(home) == before
    write_facts(home, [usage_row(n) for n in range(2, 6000)])
    with connect(home) as connection:
        assert counts(connection)["usage"] == 6002
    after = quick_current(home)
    assert after is not None
    assert after.number == before.number + 1
    with plain(home) as connection:
        assert counts(connection)["usage"] == 6002


def test_a_new_model_in_the_tail_has_a_price(tmp_path: Path) -> None:
    """A model that only occurs in the tail has a price immediately, before anything is published."""
    home = a_home(tmp_path)
    write_facts(home, [usage_row(1)])
    ingest(home)
    write_facts(home, [usage_row(2, model="claude-opus-5-5"), usage_row(3, model="nobody")])
    with connect(home, ingest=False) as connection:
        rows = connection.execute(
            "SELECT model, cost_usd > 0, cost_status FROM costs ORDER BY model"
        )
        assert rows.fetchall() == [
            ("claude-opus-5-5", True, "exact"),
            ("claude-sonnet-5-5", True, "exact"),
            ("nobody", None, "unknown_model"),
        ]


@pytest.mark.slow
def test_queries_import_no_other_packages(tmp_path: Path) -> None:
    """A reader of a published store imports neither the price list nor the provider's SDK."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    ingest(home)
    code = """
import sys
from agentobs.store.duckdb.connection import connect, named

with connect(sys.argv[1]) as connection:
    assert len(named(connection, "cost_by_model").fetchall()) == 1
print([name for name in ("genai_prices", "anthropic", "plotly", "opentelemetry") if name in sys.modules])
"""
    assert finish(python(code, home.path)) == "[]\n"


@pytest.mark.slow
def test_one_process_reads_many_generations(tmp_path: Path) -> None:
    """Connections of one process to different generations do not affect each other, even in different threads."""
    home = a_home(tmp_path)
    opened: list[tuple[int, duckdb.DuckDBPyConnection]] = []
    failures: list[BaseException] = []

    def look(number: int) -> None:
        try:
            with connect(home, ingest=False) as connection:
                assert counts(connection)["session_starts"] >= number
        except BaseException as error:
            failures.append(error)

    for number in range(1, 4):
        record(home, conversation(number, turns=1))
        ingest(home)
        opened.append((number, connect(home)))
        threads = [threading.Thread(target=look, args=(number,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    for number, connection in opened:
        assert counts(connection)["session_starts"] == number
        connection.close()
