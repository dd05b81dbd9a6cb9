"""Rows as files: complete and exact, written a batch at a time, and absent after an error."""

from __future__ import annotations

import csv
import io
import json
import stat
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import nanoarrow
import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.named_queries import query_names
from agentobs.store.port import Statement
from exporters.row_files import write_file
from exporters.row_text import write_csv
from tests.marks import mark_all_but_first
from tests.store.recordings import a_home, conversation, record
from tests.store.test_export_rows import run

FORMS = ("parquet", "csv", "jsonl", "arrows")


def read(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a file, read by a library that is independent of agentobs."""
    if path.suffix == ".arrows":
        with nanoarrow.ArrayStream.from_path(str(path)) as stream:
            return [tuple(row.values()) for row in stream.read_all().to_pylist()]
    reader = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}[path.suffix[1:]]
    return duckdb.execute(f"FROM {reader}('{path}')").fetchall()


@pytest.mark.slow
def test_an_arrow_file_contains_the_values_of_the_table(tmp_path: Path) -> None:
    """The Arrow file contains each value of a table, with exact costs, and only its owner can read it."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    with connect(home) as connection:
        for what in ("costs", "tool_uses", "turns"):
            path = tmp_path / f"{what}.arrows"
            result = run(home, "export", what, "-o", path)
            assert result.exit_code == 0, result.exception
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            rows = connection.execute(f'FROM "{what}"').fetchall()
            columns = [each[0] for each in connection.description or []]
            with nanoarrow.ArrayStream.from_path(str(path)) as stream:
                values = stream.read_all().to_pylist()
            assert result.output == f"{len(rows)} rows: {path}\n"
            assert len(values) == len(rows)
            for row, value in zip(rows, values, strict=True):
                assert list(value) == columns
                for mine, theirs in zip(row, value.values(), strict=True):
                    if isinstance(mine, Decimal | int | str | float):
                        assert theirs == mine


@pytest.mark.slow
def test_every_named_query_can_be_exported(tmp_path: Path) -> None:
    """The rows of all queries can be written to formats with column types."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    with connect(home, unsafe=True) as connection:
        for name in query_names():
            row_counts = {"parquet": 0, "arrows": 0}
            for form in row_counts:
                row_count = run_named(
                    DuckStore(connection, home), name, tmp_path / f"{name}.{form}"
                )
                row_counts[form] = row_count
            assert row_counts["parquet"] == row_counts["arrows"], name


def run_named(store: DuckStore, name: str, path: Path) -> int:
    statement = store.statement(name)
    return write_file(store, statement, dict.fromkeys(statement.parameters), path)


def write(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, Any], path: Path
) -> int:
    """Write the rows of any statement, with any connection."""
    store = DuckStore(connection, Home(path.parent))
    return write_file(store, Statement(sql, frozenset(parameters)), parameters, path)


@pytest.mark.parametrize("form", mark_all_but_first(FORMS, pytest.mark.slow))
def test_a_file_larger_than_the_memory(tmp_path: Path, form: str) -> None:
    """Rows of 190 MB are written with a memory limit of 128 MB, a batch at a time."""
    path = tmp_path / f"rows.{form}"
    sql = "SELECT range AS n, repeat(md5(range::VARCHAR), 6) AS text FROM range($rows)"
    with duckdb.connect(config={"memory_limit": "128MB", "threads": 1}) as connection:
        connection.execute("SET temp_directory = ''")
        assert write(connection, sql, {"rows": 1_000_000}, path) == 1_000_000
    if form == "arrows":
        with nanoarrow.ArrayStream.from_path(str(path)) as stream:
            assert sum(len(batch) for batch in stream) == 1_000_000
    else:
        counted = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}[form]
        assert duckdb.execute(f"SELECT count(*) FROM {counted}('{path}')").fetchall() == [
            (1_000_000,)
        ]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_complete_or_absent(tmp_path: Path, form: str) -> None:
    """A query that fails halfway leaves no file."""
    path = tmp_path / f"rows.{form}"
    sql = "SELECT CASE WHEN range = 900000 THEN error('no') ELSE range END AS n FROM range($rows)"
    with duckdb.connect() as connection, pytest.raises(Exception, match="no"):
        write(connection, sql, {"rows": 1_000_000}, path)
    assert list(tmp_path.iterdir()) == []


ENDLESSLY = """
import sys
from pathlib import Path
import duckdb
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.port import QueryError, Statement
from exporters.row_files import write_file

sql = "SELECT CASE WHEN range = 900000 THEN error('no') ELSE range END AS n FROM range($rows)"
path = Path(sys.argv[1])
for _ in range(30):
    with duckdb.connect(config={"threads": 2}) as connection:
        settings = "SELECT current_setting('threads'), current_setting('async_threads')"
        before = connection.execute(settings).fetchall()
        try:
            store = DuckStore(connection, Home(path.parent))
            write_file(store, Statement(sql, frozenset({"rows"})), {"rows": 1_000_000}, path)
        except QueryError as error:
            print(error)
        assert connection.execute(settings).fetchall() == before
"""


@pytest.mark.slow
def test_an_export_ends_when_its_query_fails(tmp_path: Path) -> None:
    """An export ends when its query fails, instead of waiting for DuckDB's writer threads.

    The query runs in a process, because pytest's timeout cannot interrupt C code.
    """
    command = [sys.executable, "-c", ENDLESSLY, str(tmp_path / "rows.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout.count("no") == 30


def test_formulas_are_quoted_only_in_csv(tmp_path: Path) -> None:
    """In CSV, a formula in a text value gets a leading quote; other formats and types are unchanged."""
    sql = "SELECT '=1+1' AS a, -5 AS b, ['=2'] AS c, '@x' AS d"
    with duckdb.connect() as connection:
        for form in FORMS:
            assert write(connection, sql, {}, tmp_path / f"x.{form}") == 1
    assert (tmp_path / "x.csv").read_text() == "a,b,c,d\n'=1+1,-5,['=2'],'@x\n"
    assert json.loads((tmp_path / "x.jsonl").read_text())["a"] == "=1+1"
    assert read(tmp_path / "x.parquet") == [("=1+1", -5, ["=2"], "@x")]
    assert read(tmp_path / "x.arrows") == [("=1+1", -5, ["=2"], "@x")]


@pytest.mark.parametrize(
    "sign", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"]
)
def test_every_start_of_a_formula_is_quoted(tmp_path: Path, sign: str) -> None:
    """Both CSV writers add a leading quote to a text that starts with the sign, and to no other text."""
    out = io.StringIO()
    write_csv(out, ["a", "b"], [[f"{sign}1", f"x{sign}1"]])
    with duckdb.connect() as connection:
        sql = "SELECT $a AS a, 'x' || $a AS b"
        write(connection, sql, {"a": f"{sign}1"}, tmp_path / "x.csv")
    assert f"'{sign}1" in out.getvalue()
    with (tmp_path / "x.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], [f"'{sign}1", f"x{sign}1"]]


@pytest.mark.slow
def test_every_public_table_and_view_can_be_exported(tmp_path: Path) -> None:
    """Internal tables are not offered; exporting one of them is an error."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    with connect(home, unsafe=True) as connection:
        offered = "SELECT DISTINCT table_name FROM information_schema.tables"
        for (name,) in connection.execute(offered).fetchall():
            try:
                sql = DuckStore(connection, home).statement(name).text
            except UsageError:
                assert name in ("meta", "migrations")
                continue
            connection.execute(f"SELECT * FROM ({sql}) LIMIT 0")
    arguments = ["--home", str(home.path), "export", "migrations", "-o", str(tmp_path / "m.csv")]
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, UsageError)


def test_an_unknown_suffix_is_rejected(tmp_path: Path) -> None:
    """An unknown suffix gives an error that lists the supported suffixes."""
    with duckdb.connect() as connection, pytest.raises(UsageError, match=r"\.arrows"):
        write(connection, "SELECT 1", {}, tmp_path / "x.arrow")
