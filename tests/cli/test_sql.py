"""`agentobs sql`: parameters, limits, the errors when a limit is reached, and `--unsafe`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

import agentobs
from agentobs.cli.inspection.sql import ROWS, sql
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connect, select
from agentobs.store.duckdb.generations import current
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.sql_worker import Limits
from tests.cli.test_commands import Shell
from tests.marks import mark_all_but_first
from tests.store.recordings import ROOT, a_home, conversation, record

DOCUMENT = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = a_home(tmp_path_factory.mktemp("sql"))
    record(home, conversation(1))
    ingest(home)
    return home


@pytest.fixture
def shell(home: Home, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(home.path, capsys)


PARAMETERS: list[tuple[str, str, Any]] = [
    ("story", "VARCHAR", "story"),
    ("3", "INTEGER", 3),
    ("0042", "VARCHAR", "0042"),
    ('"42"', "VARCHAR", "42"),
    ("", "VARCHAR", ""),
    ("a=b; DROP VIEW sessions", "VARCHAR", "a=b; DROP VIEW sessions"),
    ("0.10", "DECIMAL(2,2)", "0.10"),
    ("true", "BOOLEAN", True),
    ("null", '"NULL"', None),
    ("NaN", "VARCHAR", "NaN"),
    ('["a", "b"]', "VARCHAR[]", ["a", "b"]),
]


@pytest.mark.slow
def test_parameters_have_types(shell: Shell) -> None:
    """A parameter that is a JSON value keeps its type, any other value is text, and no value is interpreted as SQL."""
    names = [f"p{number}" for number in range(len(PARAMETERS))]
    asked = ", ".join(f"${name} AS {name}, typeof(${name}) AS type_{name}" for name in names)
    given = [
        part
        for name, (text, _, _) in zip(names, PARAMETERS, strict=True)
        for part in ("--param", f"{name}={text}")
    ]
    result = shell("sql", f"SELECT {asked}", "--json", *given)
    assert result.err == ""
    row = json.loads(result.out)
    for name, (_, kind, value) in zip(names, PARAMETERS, strict=True):
        assert (row[name], row[f"type_{name}"]) == (value, kind), name


@pytest.mark.parametrize(
    "options",
    [
        ["--param", "n"], ["--param", "=3"], ["--param", "1n=3"], ["--param", "n=1", "--param", "n=2"],
        ["--memory", "much"], ["--memory", "0"], ["--max-rows", "0"], ["--max-columns", "-1"], ["--timeout", "soon"],
        ["--timeout", "0"], ["--timeout", "-1"], ["--timeout", "nan"], ["--timeout", "1e30"], ["--max-bytes", "1XB"],
        ["--unsafe", "--timeout", "3"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_invalid_options_are_rejected(shell: Shell, options: list[str]) -> None:
    """The error names the invalid option before the query runs."""
    result = shell("sql", "SELECT 1", *options)
    assert result.code != 0
    assert result.out == ""
    assert "rror: " in result.err


@pytest.mark.parametrize(
    ("query", "options", "out", "found"),
    mark_all_but_first([
        ("FROM range(5)", ["--max-rows", "2", "--csv"], "range\n0\n1\n", "more than 2 rows"),
        ("FROM range(5)", ["--max-rows", "1"], "range\n    0\n", "more than 1 rows"),
        ("SELECT 1, 2, 3", ["--max-columns", "2"], "", "3 columns, more than 2"),
        ("SELECT repeat('x', 5000)", ["--max-bytes", "1K", "--json"], "", "larger than 1,024 bytes"),
        ("SELECT len(range(100000000))", ["--memory", "64MB"], "", "needs more than 64 MiB of memory"),
        ("SELECT count(*) FROM range(1000000000000)", ["--timeout", "0.2"], "", "took longer than 0.2 s"),
    ], pytest.mark.slow),
)  # fmt: skip
def test_a_limit_that_is_reached(
    shell: Shell, query: str, options: list[str], out: str, found: str
) -> None:
    """If a limit is reached, earlier rows are printed, and the error shows how to raise the limit.

    The exit code is not 0.
    """
    result = shell("sql", query, *options)
    assert (result.code, result.out) == (1, out)
    assert len(result.err.splitlines()) == 1
    assert found in result.err
    assert f"raise the limit: {options[0]} on the command line, Limits(" in result.err


def test_the_default_limit_of_rows(shell: Shell) -> None:
    """The command line prints 10,000 rows by default."""
    result = shell("sql", "FROM range(20000)", "--csv")
    assert (result.code, result.out.count("\n")) == (1, ROWS + 1)
    assert "more than 10,000 rows" in result.err


@pytest.mark.slow
def test_errors_escape_control_characters(shell: Shell) -> None:
    """Control characters in data and SQL that an error quotes are escaped."""
    hostile = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202e\r"
    for query in (
        f"SELECT error('{hostile}')",
        f'SELECT "{hostile}"',
        f"SELECT '{hostile}'::INTEGER",
    ):
        result = shell("sql", query)
        assert result.code == 1
        assert not set(hostile) - {"\r", *"]52;caGk=[J31m"} & set(result.err)
        assert "\\u001b" in result.err
        assert len(result.err.splitlines()) == 1


def test_unsafe_queries(home: Home, shell: Shell, tmp_path: Path) -> None:
    """With `--unsafe`, a warning is printed, files are accessible, and the store stays unchanged."""
    before = current(home)
    (tmp_path / "prices.csv").write_text("model,usd\na,1\n")
    result = shell("sql", f"SELECT * FROM '{tmp_path}/prices.csv'", "--csv", "--unsafe")
    assert (result.code, result.out) == (0, "model,usd\na,1\n")
    assert result.err.startswith("unsafe: no limits")
    made = shell(
        "sql", "CREATE TABLE t AS SELECT 1 AS n; SELECT n + 1 AS m FROM t", "--unsafe", "--csv"
    )
    assert (made.code, made.out) == (0, "m\n2\n")
    asked = shell("sql", "SELECT $n + 1 AS m", "--unsafe", "--csv", "--param", "n=1")
    assert (asked.code, asked.out) == (0, "m\n2\n")
    refused = shell("sql", "DELETE FROM published.main.segments", "--unsafe")
    assert refused.code == 1
    assert "read-only" in refused.err.splitlines()[-1]
    assert current(home) == before
    assert shell("sql", "SELECT count(*) AS n FROM attempts", "--unsafe", "--csv").out == "n\n3\n"
    with agentobs.connect(home.path, unsafe=True) as connection:
        sql = f"SELECT count(*) FROM '{tmp_path}/prices.csv'"
        assert connection.execute(sql).fetchall() == [(1,)]
    with agentobs.connect(home.path) as connection, pytest.raises(duckdb.Error):
        connection.execute(sql)


@pytest.mark.slow
def test_ctrl_c_kills_the_worker(home: Home) -> None:
    """A command that is interrupted by Ctrl-C prints one line and leaves no process behind."""
    query = "SELECT count(*) FROM range(100000000000000)"
    process = subprocess.Popen(
        [sys.executable, "-m", "agentobs", "--home", home.path, "sql", query, "--timeout", "300"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (children := children_of(process.pid)):
        time.sleep(0.01)
    [worker_id] = children
    while "agentobs.store.duckdb.sql_worker_main" not in command_of(worker_id):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "interrupted")
    while Path(f"/proc/{worker_id}").exists():  # limited by pytest's timeout
        time.sleep(0.01)


def children_of(process_id: int) -> list[int]:
    result = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(each) for each in result.split()]


def command_of(process_id: int) -> str:
    return Path(f"/proc/{process_id}/cmdline").read_bytes().decode()


STATEMENTS = [
    each.strip()
    for block in re.findall(r"```sql\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    for each in block.split(";")
    if each.strip()
]


@pytest.mark.slow
def test_statements_of_the_document_run(home: Home) -> None:
    """Every statement in docs/sql.md runs, and so does its Python code."""
    assert len(STATEMENTS) == 7
    with connect(home) as store:
        for statement in STATEMENTS:
            assert select(store, statement).fetchall() is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTOBS_HOME", str(home.path))
        for block in re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL):
            exec(compile(block, "docs/sql.md", "exec"), {})


def test_limits_in_the_document_are_correct() -> None:
    """The table in docs/sql.md lists all limits with their options and defaults."""
    rows = re.findall(
        r"^\| [^|]+ \| `(--[a-z-]+)` \| `(\w+)` \| (\d+) \| (\d+) \|$", DOCUMENT, re.M
    )
    result = CliRunner().invoke(sql, ["--help"]).output
    defaults = Limits()
    assert len(rows) == 5
    for option, name, on_the_command_line, in_the_library in rows:
        assert option in result
        assert getattr(defaults, name) == float(in_the_library)
        expected = ROWS if name == "rows" else getattr(defaults, name)
        assert expected == float(on_the_command_line)
