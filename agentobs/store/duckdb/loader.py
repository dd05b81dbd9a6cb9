"""Loading of JSON rows into tables with DuckDB's own reader.

`read_json` on a file takes 0.6 to 2.5 us per row, depending on the width of the row; the same text as a bound parameter
takes 20 us (November 2026). The rows are therefore passed as a file. On Linux this is an anonymous file in memory, so
that nothing is written to disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

import duckdb

from agentobs.store.duckdb.journal_tail import Mark, Rows
from agentobs.store.fact_columns import fact_columns, fact_defaults, sql_type


def load(connection: duckdb.DuckDBPyConnection, rows: Rows, schema: str = "main") -> int:
    """Insert rows into the fact tables of a schema; return their number.

    A number that does not fit its column becomes NULL, and a row that is not a JSON object is skipped and counted as a
    misfit, so that invalid data from a provider does not block the import of other rows.
    """
    inserted = 0
    for table, lines in rows.tables.items():
        columns, later = fact_columns(table), fact_defaults(table)
        count = insert(connection, f"{schema}.{table}", lines, columns, later)
        rows.misfits += len(lines) - count
        inserted += count
    return inserted


def save_marks(
    connection: duckdb.DuckDBPyConnection, marks: Mapping[str, Mark], table: str = "segments"
) -> None:
    """Insert marks into the table `segments`, replacing earlier marks of the same segments."""
    if not marks:
        return
    lines = [_json(dataclasses.asdict(mark)) for mark in marks.values()]
    with readable(lines) as path:
        source = _source(path, _mark_columns())
        connection.execute(
            f"DELETE FROM {table} WHERE segment_id IN (SELECT segment_id FROM {source})"
        )
        connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM {source}")


def read_marks(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, Mark]:
    """Return the marks in a table of segments, by segment ID."""
    names = ", ".join(_mark_columns())
    rows = connection.execute(f"SELECT {names} FROM {table}").fetchall()
    return {row[0]: Mark(*row) for row in rows}


def insert(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    lines: Sequence[bytes],
    columns: Mapping[str, str],
    defaults: Mapping[str, Any] | None = None,
) -> int:
    """Insert JSON objects, one per line, into a table; return the number of inserted rows.

    `defaults` are the values of columns, by name, that may be missing in a line.
    """
    filled = ", ".join(
        f"coalesce({name}, {_literal(v)}) AS {name}" for name, v in (defaults or {}).items()
    )
    chosen = f"* REPLACE ({filled})" if filled else "*"
    with readable(lines) as path:
        result = connection.execute(
            f"INSERT INTO {table} BY NAME SELECT {chosen} FROM {_source(path, columns)} "
            "WHERE sequence IS NOT NULL"
        ).fetchone()
    return result[0] if result else 0


def _literal(value: str | float) -> str:
    return str(value) if isinstance(value, int | float) else "'" + value.replace("'", "''") + "'"


@contextlib.contextmanager
def readable(lines: Sequence[bytes]) -> Iterator[str]:
    """Yield the path of a temporary file with these lines, which exists while the context is open."""
    text = b"\n".join(lines) + b"\n"
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):  # noqa: PTH112  # a string is all we need
        descriptor = os.memfd_create("agentobs-rows")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile(prefix="agentobs-") as file:
            file.write(text)
            file.flush()
            yield file.name


@cache
def _mark_columns() -> dict[str, str]:
    hints = get_type_hints(Mark)
    return {f.name: sql_type(hints[f.name]) for f in dataclasses.fields(Mark)}


def _source(path: str, columns: Mapping[str, str]) -> str:
    struct = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
    quoted = path.replace("'", "''")
    return f"read_json('{quoted}', format = 'newline_delimited', columns = {{{struct}}}, ignore_errors = true)"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
