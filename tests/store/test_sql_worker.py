"""The SQL worker: limits, results, and termination.

A "bomb" is a query that uses up memory or time.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import agentobs
from agentobs import Limits
from agentobs.errors import DamagedError, ForeignError, HomeError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import facts_path
from agentobs.recording.recorder import Recorder
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.sql_worker import OUT_OF_MEMORY, Worker, query
from agentobs.store.duckdb.sql_worker_main import MemoryWatch
from agentobs.store.duckdb.worker_protocol import encoded, packed_row, read, row_of
from tests.marks import mark_all_but_first
from tests.store.recordings import ROOT, a_home, attempt, conversation, python, record, start
from tests.store.test_ingest import a_line

MIB = 1024 * 1024
SMALL = Limits(timeout_seconds=0.2, memory_bytes=64 * MIB)
"""Limits that are so low that a bomb is stopped soon.

Only bombs run with them, so that no test requires a fast machine.
"""

BOMBS = """
SELECT length(repeat('x', 3000000000))
SELECT sum(length(repeat('x', 100000000 + i::INT))) FROM range(100) t(i)
SELECT length(lpad('x', 2000000000, 'y'))
SELECT length(printf('%2000000000d', 1))
SELECT length(format('{:>2000000000}', 1))
SELECT bit_length(bitstring('1', 2000000000)::VARCHAR)
SELECT len(range(1000000000))
SELECT len(generate_series(1, 1000000000))
SELECT sum(i) FROM (SELECT unnest(range(4000000000)) AS i)
SELECT levenshtein(repeat('ab', 1000000), repeat('ba', 1000000))
SELECT len(list_transform(range(100000000), lambda x: repeat('a', 1000)))
SELECT len(list_sort(list_reverse(range(300000000))))
SELECT list_reduce(range(100000000), lambda a, b: (a + b) % 7)
SELECT len(list_distinct(range(200000000)))
SELECT len(list_zip(range(100000000), range(100000000)))
SELECT len(array_agg(i)) FROM range(1000000000) t(i)
SELECT length(string_agg(i::VARCHAR, ',')) FROM range(1000000000) t(i)
SELECT histogram(i) FROM range(1000000000) t(i)
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r
WITH RECURSIVE r(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM r) SELECT max(length(s)) FROM r
SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c
SELECT count(DISTINCT i::VARCHAR || 'some longer text to store') FROM range(1000000000) t(i)
SELECT i FROM range(1000000000) t(i) ORDER BY hash(i)
SELECT regexp_matches(repeat('a', 1000000000), '(a*)*b')
SELECT len(regexp_extract_all(repeat('a', 200000000), 'a'))
SELECT len(string_split(repeat('a,', 200000000), ','))
SELECT length(hex(repeat('x', 500000000)))
SELECT repeat('9', 4000000)::BIGNUM * repeat('9', 4000000)::BIGNUM
SELECT repeat('x', 1000000000)::BLOB
SELECT map_from_entries(list_transform(range(100000000), lambda x: (x, x)))
SELECT to_json(range(100000000))
""".strip().splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = a_home(tmp_path_factory.mktemp("asked"))
    record(home, conversation(1))
    connect(home).close()
    record(home, conversation(2))
    return home


@pytest.fixture(scope="module")
def worker(home: Home) -> Iterator[Worker]:
    """A worker with enough time for a busy machine."""
    with Worker(home, Limits(timeout_seconds=300), ingest=False) as worker:
        yield worker


class Bombed:
    """A worker that is replaced after it was killed."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._worker = Worker(home, SMALL, ingest=False)

    def run(self, sql: str) -> None:
        if not self._worker.is_alive:
            self._worker.close()
            self._worker = Worker(self._home, SMALL, ingest=False)
        list(self._worker.run(sql).rows)

    def close(self) -> None:
        self._worker.close()


@pytest.fixture(scope="module")
def bombed(home: Home) -> Iterator[Bombed]:
    bombed = Bombed(home)
    yield bombed
    bombed.close()


@pytest.mark.parametrize(
    "sql", mark_all_but_first(BOMBS, pytest.mark.slow, kept=2), ids=[sql[:60] for sql in BOMBS]
)
def test_a_bomb_is_stopped(bombed: Bombed, worker: Worker, sql: str) -> None:
    """Each bomb is stopped at its limits, and the error names the limit and how to raise it; other queries are not
    affected.
    """
    with pytest.raises(UsageError) as stopped:
        bombed.run(sql)
    assert "and was stopped" in stopped.value.found
    assert "--timeout" in stopped.value.todo or "--memory" in stopped.value.todo
    assert list(worker.run("SELECT count(*) FROM attempts").rows) == [(6,)]


def test_there_are_enough_bombs() -> None:
    """The table contains at least as many bombs as were measured."""
    assert len(set(BOMBS)) == len(BOMBS) >= 22


def test_memory_in_use_is_limited_exactly() -> None:
    """During a query, memory in use above the limit ends the process; between queries it is not checked."""
    ended = threading.Event()
    watch = MemoryWatch(16 * MIB, ended.set)
    filled = b"x" * (64 * MIB)
    assert not ended.is_set()
    with watch.watched():
        assert ended.wait(60)
    assert len(filled) == 64 * MIB


PATHS = (
    "FROM {}()",
    "FROM {}",
    'FROM "{}"()',
    "SELECT count(*) FROM system.main.{}()",
    "SELECT '--', path FROM {}()",
)


@pytest.mark.parametrize("form", PATHS)
@pytest.mark.parametrize("name", ["duckdb_databases", "duckdb_settings", "pragma_database_list"])
def test_a_query_does_not_learn_paths_of_this_machine(worker: Worker, name: str, form: str) -> None:
    """Results can be shared, so functions that return paths are not available."""
    with pytest.raises(UsageError, match="can reveal paths of this machine"):
        list(worker.run(form.format(name)).rows)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT current_setting('allowed_paths')",
        "SELECT current_setting('allowed_' || 'paths')",
        "SELECT current_setting/* */ ('allowed_paths')",
        "FROM query /* /* nested */ */ ('FROM duckdb_' || 'databases()')",
        "FROM query -- a comment\n('FROM duckdb_' || 'databases()')",
        "FROM \"query\"('FROM duckdb_' || 'databases()')",
        "SELECT ('allowed_' || 'paths').current_setting()",
        "FROM query('FROM duckdb_' || 'databases()')",
        "FROM query_table(['duckdb_' || 'databases'])",
        "FROM pg_catalog.pg_settings",
    ],
)
def test_a_query_does_not_learn_paths_indirectly(worker: Worker, sql: str) -> None:
    """Settings, and statements that are values, do not reveal paths either."""
    with pytest.raises(UsageError, match="can reveal paths of this machine"):
        list(worker.run(sql).rows)


def test_many_comments_do_not_delay_a_query(worker: Worker) -> None:
    """The search for these functions takes linear time; a search that takes exponential time would never end."""
    assert list(worker.run("SELECT 1 AS query, " + "/**/" * 2000 + " 2").rows) == [(1, 2)]
    assert list(worker.run('SELECT 1 AS "query"' + "\n" * 50_000).rows) == [(1,)]


@pytest.mark.slow
def test_no_function_without_arguments_returns_the_home(home: Home) -> None:
    """No table function or view of DuckDB that needs no arguments returns the path of the home."""
    sql = (
        "SELECT DISTINCT function_name FROM duckdb_functions() "
        "WHERE function_type IN ('table', 'table_macro') AND len(parameters) = 0"
    )
    with Worker(home) as worker:
        names = [str(row[0]) for row in worker.run(sql).rows]
        assert len(names) > 30
        for name in names:
            with contextlib.suppress(UsageError):
                assert str(home.path) not in repr(list(worker.run(f"FROM {name}()").rows)), name


@pytest.mark.slow
def test_processor_time_is_limited_as_well(home: Home) -> None:
    """A query is killed if it uses too much processor time, even if no result is read from it, and the error names the
    reason.
    """
    cores = os.cpu_count() or 1
    with Worker(home, Limits(timeout_seconds=1.0), ingest=False) as worker:
        rows = worker.run("SELECT i FROM range(10000000) t(i)").rows
        next(rows)
        soft, _ = resource.prlimit(worker.process_id, resource.RLIMIT_CPU)
        assert soft <= cores + 1 + used_seconds(worker.process_id)
        os.kill(worker.process_id, signal.SIGXCPU)
        with pytest.raises(UsageError, match="more processor time than 1 s"):
            list(rows)


def used_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    mark_all_but_first([signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV], pytest.mark.crash),
)
def test_a_worker_that_dies_is_reported(home: Home, code: signal.Signals) -> None:
    """If the worker is killed for any reason, the query ends with one error, and so does the next query."""
    with Worker(home, Limits(timeout_seconds=300), ingest=False) as worker:
        rows = worker.run("SELECT i FROM range(10000000) t(i)").rows
        next(rows)
        os.kill(worker.process_id, code)
        with pytest.raises(UsageError, match="memory"):
            list(rows)
        assert not worker.is_alive
        with pytest.raises(UsageError, match="ended"):
            worker.run("SELECT 1")


@pytest.mark.slow
def test_rows_columns_and_bytes_have_limits(home: Home) -> None:
    """A result that is too large is cut off or rejected with one error, and the worker keeps working.

    Rows that were received before are valid.
    """
    limits = Limits(timeout_seconds=300, rows=1000, columns=50, answer_bytes=100_000)
    with Worker(home, limits, ingest=False) as worker:
        taken: list[Any] = []
        with pytest.raises(UsageError, match="more than 1,000 rows; the others were dropped"):
            taken.extend(worker.run("FROM range(100000000)").rows)
        assert taken == [(number,) for number in range(1000)]
        assert len(list(worker.run("FROM range(1000)").rows)) == 1000
        wide = ", ".join(f"{number} AS c{number}" for number in range(20_000))
        with pytest.raises(UsageError, match="would have 20,000 columns, more than 50"):
            worker.run(f"SELECT {wide}")
        taken.clear()
        with pytest.raises(UsageError, match="larger than 100,000 bytes; the rest was dropped"):
            taken.extend(worker.run("SELECT repeat('x', 30000) FROM range(900)").rows)
        assert taken == [("x" * 30_000,)] * 3
        with pytest.raises(UsageError, match="larger than 100,000 bytes"):
            list(worker.run("SELECT repeat('x', 10000000)").rows)
        with pytest.raises(UsageError, match="larger than 100,000 bytes"):
            list(worker.run(f'SELECT 1 AS "{"x" * 200_000}"').rows)
        with pytest.raises(UsageError):
            list(worker.run("SELECT repeat('x', 5000000000)").rows)
        assert list(worker.run("SELECT 1").rows) == [(1,)]


def test_the_length_of_a_statement_is_limited(worker: Worker) -> None:
    """A statement of more than 16 MiB is not sent."""
    with pytest.raises(UsageError, match="The limit is 16 MiB"):
        worker.run("SELECT 1 -- " + "x" * (16 * MIB))
    assert list(worker.run("SELECT 1").rows) == [(1,)]


ALL_TYPES = "SELECT * EXCLUDE (medium_enum, large_enum) FROM test_all_types()"


def test_rows_equal_those_of_duckdb(home: Home, worker: Worker) -> None:
    """Every DuckDB type arrives with its value and its Python type; time zones arrive as offsets."""
    with connect(home, ingest=False) as connection:
        expected = connection.execute(ALL_TYPES).fetchall()
        names = [str(column[0]) for column in connection.description or []]
    answer = worker.run(ALL_TYPES)
    assert answer.columns == names
    assert plain(list(answer.rows)) == plain(expected)
    for sql in (
        "SELECT map([[1]], [2]), map([1], [2]), {'a': [1.5::DECIMAL(3, 1)]}",
        "SELECT 1 AS a, 2 AS a",
    ):
        with connect(home, ingest=False) as connection:
            assert list(worker.run(sql).rows) == connection.execute(sql).fetchall()


def plain(value: Any) -> Any:
    """Return a value with its type in a form that can be compared: NaN equals NaN, and a time zone is its offset."""
    if isinstance(value, list | tuple):
        return type(value), [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return type(value), value.isoformat() if isinstance(value, datetime) else repr(value)


VALUES: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, float("inf"), "", "a\x00b\u2028é\U0001f986", b"", b"\x00\xff",
    Decimal("0.000660000000"), Decimal("-1e-12"), date(2026, 9, 21),
    datetime.fromisoformat("2026-09-21T01:02:03.000004"),
    datetime(2026, 9, 21, tzinfo=UTC), timedelta(days=-1, microseconds=1), UUID(int=5), [1, None], {"a": [1]},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_parameters_arrive_unchanged(home: Home, worker: Worker, value: Any) -> None:
    """A parameter has the same value in a worker as in a connection."""
    with connect(home, ingest=False) as connection:
        [expected] = connection.execute("SELECT ?, typeof($1)", [value]).fetchall()
    [found] = worker.run("SELECT ?, typeof($1)", [value]).rows
    assert plain(found) == plain(expected)


def test_unsupported_parameters(worker: Worker) -> None:
    """A value of another type is rejected before the query is sent."""
    for value in (object(), {1, 2}, range(3), print):
        with pytest.raises(UsageError, match=f"a value of type {type(value).__name__}"):
            worker.run("SELECT ?", [value])
    with pytest.raises(UsageError):
        worker.run("SELECT ?", ["\ud800"])
    assert list(worker.run("SELECT 1").rows) == [(1,)]


def unfolded(value: Any) -> Any:
    # DuckDB does not store `fold`, which marks the repeated hour when daylight saving time ends.
    return value.replace(fold=0)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.decimals(allow_nan=False),
    st.dates(),
    st.times().map(unfolded),
    st.datetimes().map(unfolded),
    st.datetimes(timezones=st.just(UTC)).map(unfolded),
    st.timedeltas(),
    st.uuids(),
)
KEYS = st.text(max_size=5) | st.integers() | st.dates()
VALUES_OR_NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=4,
)
ROWS = st.lists(VALUES_OR_NESTED, max_size=3).map(tuple)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS)
def test_any_row_survives_a_round_trip(row: tuple[Any, ...]) -> None:
    """A row that is packed and sent is received with the same values and types."""
    message = encoded({"rows": [packed_row(row)]})
    assert int.from_bytes(message[:4], "big") == len(message) - 4
    [found] = read(message[4:], "rows")["rows"]
    assert plain(row_of(found)) == plain(row)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"1", b"{}", b'{"else":1}', b"\xff", b'{"rows":' + b"[" * 100_000, b"\x80\x04K\x01.",
        b'{"rows":' + b"1" * 10_000 + b"}",
    ],
)  # fmt: skip
def test_invalid_messages_are_errors(data: bytes) -> None:
    """Bytes that are not a valid message raise a DamagedError."""
    with pytest.raises(DamagedError):
        read(data, "rows")


@pytest.mark.parametrize(
    "packed",
    [
        1, {"tuple": []}, [{}], [{"a": 1}], [{"bytes": "?"}], [{"decimal": "x"}], [{"uuid": 1}], [{"map": [1]}],
        [{"date": "x"}], [{"float": "x"}], [{"interval": "x"}], [{"tuple": 1}], [{"date": "x", "time": "y"}],
        [{"map": [[[1], 2]]}], [{"__class__": "os.system"}],
    ],
    ids=repr,
)  # fmt: skip
def test_invalid_rows_are_errors(packed: Any) -> None:
    """A value in an invalid form raises a DamagedError, and creates no objects."""
    with pytest.raises(DamagedError):
        row_of(packed)


def test_the_worker_has_given_up_its_rights(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has its own session and almost no environment variables, and cannot open files, write files or dump
    memory.
    """
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary-1")
    monkeypatch.setenv("AGENTOBS_CANARY", "canary-2")
    with Worker(home, Limits(memory_bytes=200 * MIB), ingest=False) as worker:
        assert list(worker.run("SELECT 1").rows) == [(1,)]
        variables = Path(f"/proc/{worker.process_id}/environ").read_bytes()
        assert b"PYTHONPATH=" in variables
        assert b"canary" not in variables
        assert os.getsid(worker.process_id) == worker.process_id != os.getsid(0)
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
            assert resource.prlimit(worker.process_id, kind) == (0, 0)
        soft, hard = resource.prlimit(worker.process_id, resource.RLIMIT_AS)
        assert 200 * MIB < soft == hard < 4096 * MIB


SHADOW = "open('{path}/was-run', 'w')\n"


@pytest.mark.slow
def test_no_module_of_the_current_directory_is_imported(home: Home, tmp_path: Path) -> None:
    """A file in the current directory that is named like a module is not imported."""
    for name in ("duckdb", "json", "queue", "agentobs"):
        (tmp_path / f"{name}.py").write_text(SHADOW.format(path=tmp_path))
    command = [sys.executable, "-P", "-m", "agentobs", "--home", str(home.path)]
    ended = subprocess.run(
        [*command, "sql", "SELECT 41 + 1 AS a", "--csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.stderr) == ("a\n42\n", "")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.slow
def test_a_worker_sees_earlier_records(tmp_path: Path) -> None:
    """A worker sees all records of a running session that were written before it was started."""
    home = a_home(tmp_path)
    recorder = Recorder(home)
    recorder(start(1))
    for turn in (1, 2):
        recorder(attempt(1, turn))
        assert recorder.flush()
        assert agentobs.query("SELECT status, turns FROM sessions", home=home.path) == [
            ("running", turn)
        ]
    assert recorder.close()


@pytest.mark.slow
def test_a_worker_runs_one_query_at_a_time(home: Home) -> None:
    """If a query starts before all rows of the previous result were read, an error is raised, and no rows of another
    query are returned.
    """
    with Worker(home, Limits(timeout_seconds=300), ingest=False) as worker:
        answer = worker.run("FROM range(10)")
        with pytest.raises(UsageError, match="before the last row of another result"):
            worker.run("SELECT 1")
        with pytest.raises(UsageError, match="ended"):
            list(answer.rows)
    with Worker(home, Limits(timeout_seconds=300), ingest=False) as worker:
        rows = worker.run("FROM range(10000000)").rows
        next(rows)
        rows.close()  # type: ignore[attr-defined]
        assert not worker.is_alive


@pytest.mark.slow
def test_opening_errors_equal_those_of_connect(tmp_path: Path) -> None:
    """Without recordings, or with a foreign file, a worker raises the errors of `connect`."""
    with pytest.raises(HomeError, match="no recordings found"):
        query("SELECT 1", home=tmp_path)
    home = a_home(tmp_path)
    with duckdb.connect(str(home.database)) as connection:
        connection.execute("CREATE TABLE other (a INTEGER)")
    with pytest.raises(ForeignError, match="was not written by agentobs"):
        query("SELECT 1", home=home)


@pytest.mark.slow
def test_warnings_of_opening_are_passed_on(tmp_path: Path) -> None:
    """A query in a worker emits the same warnings as a connection."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    newer = "f" * 32
    text = json.dumps({"format": 99, "segment_id": newer}).encode()
    facts_path(home, newer).write_bytes(a_line(newer, 1, "segment", text))
    with pytest.warns(RuntimeWarning, match="newer version"):
        assert query("SELECT count(*) FROM attempts", home=home) == [(3,)]


@pytest.mark.parametrize(
    "name", ["timeout_seconds", "memory_bytes", "rows", "columns", "answer_bytes"]
)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 10**30])
def test_invalid_limits_are_rejected(name: str, value: float) -> None:
    """Limits of 0 or less, and limits beyond the maximum, are rejected."""
    with pytest.raises(UsageError, match="invalid limit"):
        Limits(**{name: value})  # type: ignore[arg-type]


ASKING = """
import sys
from agentobs.store.duckdb.sql_worker import Limits, Worker

with Worker(sys.argv[1], Limits(timeout_seconds=300), ingest=False) as worker:
    list(worker.run("SELECT 1").rows)
    print(worker.process_id, flush=True)
    list(worker.run("SELECT count(*) FROM range(100000000000000)").rows)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", mark_all_but_first([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], pytest.mark.crash)
)
def test_a_worker_does_not_outlive_its_parent(home: Home, how: signal.Signals) -> None:
    """A worker ends in the middle of a query if its parent process ends in any way, even if it is killed."""
    process = python(ASKING, home.path)
    assert process.stdout
    worker_id = int(process.stdout.readline())
    before = used_seconds(worker_id)
    while used_seconds(worker_id) < before + 0.1:
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate()
    assert process.returncode != 0
    while is_running(worker_id):  # if the worker never ends, pytest's timeout ends this test
        time.sleep(0.01)


def is_running(process_id: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return ") Z " not in Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_the_parent_needs_no_duckdb(home: Home) -> None:
    """The parent process of a worker imports neither DuckDB nor the modules that read the store."""
    code = """
import sys
from agentobs.store.duckdb.sql_worker import query

assert query("SELECT count(*) FROM attempts", home=sys.argv[1]) == [(6,)]
print([name for name in ("duckdb", "agentobs.ledger", "rich", "anthropic") if name in sys.modules])
"""
    process = python(code, home.path)
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("[]\n", "")


def test_the_exit_code_for_memory_is_unique() -> None:
    """The exit code for missing memory is not used by Python or a shell."""
    assert OUT_OF_MEMORY not in (0, 1, 2, 120, 126, 127, 130)
    assert (ROOT / "agentobs" / "store" / "duckdb" / "sql_worker_main.py").is_file()
