"""Exporting rows to files for other tools, and printing journal records."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from agentobs.cli import cli
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment, facts_path, segment_ids
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.shared_stores import shared_store
from tests.store.recordings import a_home, conversation, record


def run(home: Home, *arguments: object) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home.path), *map(str, arguments)])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """An open home with an ingested session, and one that is not ingested; tests only read it."""
    home = a_home(tmp_path_factory.mktemp("exported"))
    record(home, conversation(1))
    ingest(home)
    record(home, conversation(2))
    with shared_store(home.path):
        yield home


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_rows_as_a_file(home: Home, tmp_path: Path, form: str) -> None:
    """Tables, views and named queries can be written to a file that only its owner can read, with all rows and exact
    costs.
    """
    reader = {"parquet": "read_parquet", "csv": "read_csv", "jsonl": "read_json"}[form]
    for what in ("attempts", "costs", "cost_by_model"):
        path = tmp_path / f"{what}.{form}"
        before = os.umask(0)
        try:
            result = run(home, "export", what, "-o", path)
        finally:
            os.umask(before)
        assert result.exit_code == 0, result.exception
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        read = duckdb.execute(f"FROM {reader}('{path}')").fetchall()
        if what == "costs":
            money = duckdb.execute(f"SELECT sum(cost_usd::DECIMAL(38, 12)) FROM {reader}('{path}')")
            with connect(home, ingest=False) as connection:
                expected = connection.execute("SELECT sum(cost_usd) FROM costs").fetchone()
            assert money.fetchone() == expected
        assert result.output == f"{len(read)} rows: {path}\n"
        assert len(read) == (1 if what == "cost_by_model" else 6)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


@pytest.mark.slow
def test_nothing_is_overwritten(home: Home, tmp_path: Path) -> None:
    """An existing file or link is not overwritten; with --force, a plain file is replaced, but a link is not."""
    mine, link = tmp_path / "mine.csv", tmp_path / "link.csv"
    mine.write_text("mine")
    link.symlink_to(mine)
    for path in (mine, link):
        assert "the file exists" in str(run(home, "export", "costs", "-o", path).exception)
    refused = run(home, "export", "costs", "-o", link, "--force")
    assert "it is a link" in str(refused.exception)
    assert (mine.read_text(), link.is_symlink()) == ("mine", True)
    assert run(home, "export", "costs", "-o", mine, "--force").exit_code == 0
    assert mine.read_text() != "mine"
    for wrong in (tmp_path / "x.txt", tmp_path / "nowhere" / "x.csv"):
        assert run(home, "export", "costs", "-o", wrong).exit_code == 1
    assert "no query" in str(run(home, "export", "costs; DROP", "-o", tmp_path / "y.csv").exception)
    assert "It has the parameters" in str(
        run(home, "export", "sessions", "-o", tmp_path / "y.csv", "--param", "x=1").exception
    )
    assert (
        run(
            home, "export", "slowest_requests", "-o", tmp_path / "y.csv", "--param", "limit=1"
        ).exit_code
        == 0
    )


def test_formulas_are_quoted_in_csv_files(tmp_path: Path) -> None:
    """A text that a spreadsheet would evaluate as a formula gets a leading quote in a CSV file."""
    home = a_home(tmp_path)
    segment = Segment(home)
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "plain"):
        segment.facts.append("events", {"session_id": "s", "kind": "note", "label": text})
    segment.close()
    path = tmp_path / "events.csv"
    assert run(home, "export", "events", "-o", path).exit_code == 0
    rows = duckdb.execute(f"SELECT label FROM read_csv('{path}', all_varchar = true)").fetchall()
    assert [row[0] for row in rows] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "plain"]


def test_journal_cat(tmp_path: Path) -> None:
    """For plain and compressed segments, `journal cat` prints the number, kind and JSON of each line.

    It escapes control characters and marks damage.
    """
    home = a_home(tmp_path)
    segment = Segment(home)
    segment.facts.append("usage", {"model": "\x1b]52;c;ZXZpbA==\x07 \u202e \x9b"})
    segment.facts.append("events", {"kind": "note"})
    segment.close()
    plain = run(home, "journal", "cat", segment.segment_id)
    assert plain.exit_code == 0
    lines = plain.output.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["1", "segment"], ["2", "usage"], ["3", "events"], ["4", "seal"]
    ]  # fmt: skip
    assert json.loads(lines[2].split(" ", 2)[2]) == {"kind": "note"}
    assert not set(plain.output) & {"\x1b", "\x07", "\u202e", "\x9b"}
    ingest(home)
    assert run(home, "journal", "cat", segment.segment_id[-8:]).output == plain.output
    path = compressed_path(facts_path(home, segment.segment_id))
    assert run(home, "journal", "cat", path).output == plain.output
    assert run(home, "journal", "cat", path, "--kind", "events").output == lines[2] + "\n"
    assert run(home, "journal", "cat", path, "--from", 3).output == "\n".join(lines[2:]) + "\n"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    damaged = run(home, "journal", "cat", path)
    assert damaged.exit_code == 1
    assert "!! " in damaged.output
    assert "no segments" in str(run(home, "journal", "cat", "nothing").exception)
    assert "no content" in str(
        run(home, "journal", "cat", segment_ids(home)[0], "--content").exception
    )
