"""The tables: each field of a fact is a column with a comment, and a reference document is generated from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import duckdb
import pytest

from agentobs.records.facts import TABLES
from agentobs.store.duckdb.schema import SETTINGS, layout, migrate, migrations, newest
from agentobs.store.fact_columns import fact_columns
from tests.marks import mark_all_but_first
from tests.write_docs import DOCUMENTS, ROOT


@pytest.fixture(scope="module")
def laid_out() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config=SETTINGS) as connection:
        migrate(connection)
        yield connection


@pytest.mark.parametrize("path", mark_all_but_first(DOCUMENTS, pytest.mark.slow, kept=27))
def test_generated_documents_are_up_to_date(path: str) -> None:
    """A committed document equals its generated text; `make docs` writes it."""
    assert (ROOT / path).read_text(encoding="utf-8") == DOCUMENTS[path]()


@pytest.mark.slow
def test_everything_has_a_comment(laid_out: duckdb.DuckDBPyConnection) -> None:
    """Every table, view and column has a comment."""
    silent = laid_out.execute(
        """
        SELECT table_name FROM duckdb_tables() WHERE NOT internal AND comment IS NULL
        UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal AND comment IS NULL
        UNION ALL SELECT table_name || '.' || column_name FROM duckdb_columns()
            WHERE NOT internal AND coalesce(comment, '') = ''
        """
    )
    assert silent.fetchall() == []


@pytest.mark.slow
def test_units_are_in_comments(laid_out: duckdb.DuckDBPyConnection) -> None:
    """The comment of a column whose name ends in a unit contains that unit in brackets."""
    units = {"_ns": "ns", "_ms": "ms", "_usd": "USD", "_tokens": "tokens", "_bytes": "bytes"}
    columns = laid_out.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal"
    ).fetchall()
    for table, column, comment in columns:
        for ending, unit in units.items():
            if column.endswith(ending):
                assert f"[{unit}" in comment, f"{table}.{column}"


@pytest.mark.parametrize("fact", TABLES, ids=lambda fact: TABLES[fact])
def test_a_table_has_the_fields_of_its_fact(
    laid_out: duckdb.DuckDBPyConnection, fact: type
) -> None:
    """The columns are the segment, the sequence, the fields of the class in order, and the session sequence."""
    table = TABLES[fact]
    columns = laid_out.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index",
        [table],
    ).fetchall()
    names = [field.name for field in dataclasses.fields(fact)]
    found = [name for name, _ in columns]
    assert "session_sequence" in found
    assert [each for each in found if each != "session_sequence"] == [
        "segment_id",
        "sequence",
        *names,
    ]
    assert dict(columns) == fact_columns(table)


def test_facts_cannot_contain_content() -> None:
    """No column of a fact has a type that could contain the text of a conversation, except columns of IDs and
    labels.
    """
    kinds = {kind for table in TABLES.values() for kind in fact_columns(table).values()}
    assert kinds == {
        "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "MAP(VARCHAR, VARCHAR)", "MAP(VARCHAR, DOUBLE)",
        "MAP(VARCHAR, BIGINT)",
    }  # fmt: skip


def test_migrations_are_applied_once(laid_out: duckdb.DuckDBPyConnection) -> None:
    """Migrations have different numbers in ascending order, and running them again changes nothing."""
    numbers = [migration.number for migration in migrations()]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, newest())
    before = laid_out.execute("FROM migrations").fetchall()
    migrate(laid_out)
    assert laid_out.execute("FROM migrations").fetchall() == before
    assert [row[:2] for row in before] == [(m.number, m.name) for m in migrations()]
    assert layout(laid_out, "memory") == newest()
