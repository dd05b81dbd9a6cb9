"""Row writing: let DuckDB write the rows of a statement as Parquet, CSV or JSON lines, or return them as Arrow."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

_FORMS = {
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".csv": "FORMAT csv, HEADER",
    ".jsonl": "FORMAT json",
}


def write(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any],
    path: Path,
    ending: str,
    escaped_starts: Sequence[str],
) -> int:
    """Write the rows of a statement to a file in the format of `ending`; see `Store.write`.

    Raises:
        OSError: the file cannot be written.
    """
    chosen = _chosen(connection, sql, parameters, ending, escaped_starts)
    place = str(path).replace("'", "''")
    copy = f"COPY ({chosen}) TO '{place}' ({_FORMS[ending]}, USE_TMP_FILE false)"
    try:
        with _without_writer_threads(connection):
            row = connection.execute(copy, dict(parameters)).fetchone()
    except duckdb.IOException as error:
        raise OSError(str(error).partition("\n")[0]) from error
    return row[0] if row else 0


def arrow(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any]
) -> duckdb.DuckDBPyRelation:
    """Return the rows of a statement as an object with the Arrow C stream interface."""
    chosen = _chosen(connection, sql, parameters, ".arrows", ())
    return connection.sql(chosen, params=dict(parameters))


@contextlib.contextmanager
def _without_writer_threads(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let each thread write its own output instead of passing it to separate writer threads.

    With writer threads, DuckDB 2.0.0 can hang in `TaskExecutor::DrainTasks`, uninterruptibly, if a statement fails
    midway. On two busy cores this occurred within twenty runs for every value of `threads`. Without writer threads, 900
    of 900 runs ended.
    """
    [(before,)] = connection.execute("SELECT current_setting('async_threads')").fetchall()
    connection.execute("SET async_threads = 0")
    try:
        yield
    finally:
        connection.execute(f"SET async_threads = {int(before)}")


def _chosen(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any],
    ending: str,
    escaped_starts: Sequence[str],
) -> str:
    """Return a statement with its columns converted to types that the format supports."""
    formula = f"^[{''.join(map(re.escape, escaped_starts))}]"
    columns = []
    for name, kind, *_ in connection.execute(f"DESCRIBE {sql}", dict(parameters)).fetchall():
        converted = quoted = '"' + name.replace('"', '""') + '"'
        if ending == ".csv" and kind == "VARCHAR" and escaped_starts:
            inert = f"chr(39) || {quoted}"
            converted = (
                f"CASE WHEN regexp_matches({quoted}, '{formula}') THEN {inert} ELSE {quoted} END"
            )
        elif ending == ".parquet" and kind in ("HUGEINT", "UHUGEINT"):
            # Parquet has no 128-bit integers, and a DOUBLE would round.
            converted = f"{quoted}::DECIMAL(38, 0)"
        columns.append(f"{converted} AS {quoted}")
    return f"SELECT {', '.join(columns)} FROM ({sql})"
