"""docs/facts.md names existing columns and tests, and every kind that the types of the installed SDK define."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest

from agentobs.store.duckdb.schema import SETTINGS, migrate
from tests.sdk_kinds import SDK_KINDS

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "facts.md"

SECTIONS = {
    "block of a response": "Blocks",
    "block of a request": "Blocks",
    "tool of a request": "Tools that a request declares",
    "event of a stream": "Streams",
    "delta": "Streams",
    "stop reason": "Reasons and errors",
    "type of error": "Reasons and errors",
    "iteration of usage": "Usage and batches",
    "result of a batch": "Usage and batches",
    "event of a managed agent": "Managed agents",
    "error of a managed agent": "Managed agents",
    "stop reason of a managed agent": "Managed agents",
}
"""The section of the document that lists the kinds."""


class Row(NamedTuple):
    """One row of the document."""

    section: str
    wire: str
    fact: str
    test: str


def rows() -> list[Row]:
    found, section = [], ""
    for line in DOCUMENT.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith(("| On the wire", "| ---")):
            found.append(Row(section, *(cell.strip() for cell in line.strip("|").split(" | "))))
    return found


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("kind", SDK_KINDS)
def test_every_kind_of_the_sdk_is_listed(kind: str) -> None:
    """A kind that a new version of the SDK adds is missing in the document, so this test fails."""
    listed = {word for row in rows() if row.section == SECTIONS[kind] for word in words(row.wire)}
    assert SDK_KINDS[kind]
    assert SDK_KINDS[kind] - listed == set()


@pytest.mark.slow
def test_every_fact_is_a_column_of_the_store() -> None:
    """Each row names columns of tables or views, or states that there is only content, or nothing."""
    with duckdb.connect(config=SETTINGS) as connection:
        migrate(connection)
        known = {
            f"{table}.{column}"
            for table, column in connection.execute(
                "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal"
            ).fetchall()
        }
    assert len(rows()) > 60
    for row in rows():
        assert set(words(row.fact)) <= known, row.wire
        assert words(row.fact) or row.fact in ("content", "not recorded"), row.wire


@pytest.mark.slow
def test_every_test_exists() -> None:
    """Each row names at least one function that is a test."""
    for row in rows():
        assert words(row.test), row.wire
        for each in words(row.test):
            path, _, name = each.partition("::")
            tree = ast.parse((ROOT / path).read_text("utf-8"))
            functions = [
                n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            assert name in functions, each
