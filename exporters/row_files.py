"""Rows as a file of their own: Parquet, CSV or JSON lines by DuckDB's own writers, or an Arrow stream.

DuckDB itself writes no Arrow: its extension would have to be fetched. It hands its rows on as Arrow all the same, a
batch at a time (`__arrow_c_stream__`), and nanoarrow, which is 1 MB and needs nothing else, writes them down; pyarrow
could too, with 45 MB. The form is the IPC stream, `.arrows`
(https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format), which all readers of Arrow take.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb

from agentobs.errors import UsageError
from exporters.new_files import new_file, unwritable
from exporters.row_text import FORMULA_STARTS

_FORMS = {
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".csv": "FORMAT csv, HEADER",
    ".jsonl": "FORMAT json",
}
_ARROW = ".arrows"
_FORMULA = f"^[{''.join(map(re.escape, FORMULA_STARTS))}]"
"""The same for DuckDB, in a class of characters."""


def write_file(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any],
    path: Path,
    *,
    force: bool = False,
) -> int:
    """Write the rows of a SELECT statement to a new file, a batch at a time; return how many.

    The file is for its owner alone (0600), and is there when it is whole. In CSV a text that a spreadsheet would
    compute gets a quote in front, as in `tabular.write_csv`.

    Args:
        connection: one that may write files: `connect(home, unsafe=True)`.
        sql: one SELECT statement of ours.
        parameters: its parameters, by name.
        path: where; its ending says the form: .parquet, .csv, .jsonl or .arrows.
        force: replace what is there.

    Raises:
        UsageError: the ending is another one, the file exists, or it cannot be written there.
    """
    ending = path.suffix.lower()
    if ending not in (*_FORMS, _ARROW):
        raise UsageError(
            f"no form of that ending: {path.suffix or 'none'}",
            where=str(path),
            todo="Name a file that ends in .parquet, .csv, .jsonl or .arrows",
        )
    streamer = _arrow_writer(path) if ending == _ARROW else None
    with new_file(path, force=force) as draft:
        chosen = _chosen(connection, sql, parameters, ending)
        try:
            if streamer is not None:
                return _stream(connection, chosen, parameters, draft, streamer)
            place = str(draft).replace("'", "''")
            copy = f"COPY ({chosen}) TO '{place}' ({_FORMS[ending]}, USE_TMP_FILE false)"
            with _written_at_once(connection):
                row = connection.execute(copy, dict(parameters)).fetchone()
        except duckdb.IOException as error:
            raise unwritable(path, str(error).partition("\n")[0]) from error
    return row[0] if row else 0


@contextlib.contextmanager
def _written_at_once(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Have each thread write what it made itself, instead of handing it to threads for writing alone.

    With those DuckDB 2.0.0 waits for ever, deaf to interrupts, where a statement fails in its middle: within twenty
    tries on two busy cores, whatever `threads` says (`TaskExecutor::DrainTasks`); without them 900 of 900 tries end.
    """
    [(before,)] = connection.execute("SELECT current_setting('async_threads')").fetchall()
    connection.execute("SET async_threads = 0")
    try:
        yield
    finally:
        connection.execute(f"SET async_threads = {int(before)}")


def _arrow_writer(path: Path) -> Any:
    """Return what writes Arrow.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module("nanoarrow.ipc").StreamWriter
    except ImportError as error:
        raise UsageError(
            "writing Arrow needs the package nanoarrow",
            where=str(path),
            todo="pip install 'agentobs-kit[arrow]', or name a file that ends in .parquet",
        ) from error


def _stream(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any],
    draft: Path,
    streamer: Any,
) -> int:
    """Write rows as a stream of Arrow batches; return how many."""
    rows = 0
    arrow = importlib.import_module("nanoarrow")
    with streamer.from_path(draft) as out:
        batches = arrow.c_array_stream(connection.sql(sql, params=dict(parameters)))
        schema = batches.get_schema()
        out.write_stream(arrow.c_array_stream([], schema=schema), write_schema=True)
        for batch in batches:
            rows += len(batch)
            out.write_stream(batch, write_schema=False)
    return rows


def _chosen(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any], ending: str
) -> str:
    """Return a statement with its columns as the form can hold them."""
    columns = []
    for name, kind, *_ in connection.execute(f"DESCRIBE {sql}", dict(parameters)).fetchall():
        made = quoted = '"' + name.replace('"', '""') + '"'
        if ending == ".csv" and kind == "VARCHAR":
            inert = f"chr(39) || {quoted}"
            made = (
                f"CASE WHEN regexp_matches({quoted}, '{_FORMULA}') THEN {inert} ELSE {quoted} END"
            )
        elif ending == ".parquet" and kind in ("HUGEINT", "UHUGEINT"):
            made = f"{quoted}::DECIMAL(38, 0)"  # Parquet has no such integers; a DOUBLE would round
        columns.append(f"{made} AS {quoted}")
    return f"SELECT {', '.join(columns)} FROM ({sql})"
