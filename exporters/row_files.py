"""Rows as a file: Parquet, CSV or JSON lines by DuckDB's own writers, or an Arrow stream.

DuckDB cannot write Arrow files without an extension that has to be downloaded. But it returns rows as Arrow batches
(`__arrow_c_stream__`), and nanoarrow writes them. nanoarrow has 1 MB and no dependencies; pyarrow has 45 MB. The format
is the IPC stream, `.arrows` (https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format), which all
readers of Arrow accept.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentobs.errors import UsageError
from agentobs.installation import install_extra
from agentobs.store.port import Statement, Store
from exporters.new_files import new_file
from exporters.row_text import FORMULA_STARTS

_DUCKDB_SUFFIXES = (".parquet", ".csv", ".jsonl")
_ARROW_SUFFIX = ".arrows"


def write_file(
    store: Store,
    statement: Statement,
    parameters: Mapping[str, Any],
    path: Path,
    *,
    force: bool = False,
) -> int:
    """Write the rows of a statement to a new file, a batch at a time; return their number.

    Only the owner can read the file (0600), and it appears only when it is complete. In CSV, text that a spreadsheet
    would evaluate gets a leading quote, as in `row_text.write_csv`.

    Args:
        store: a store that can write files: `open_store(home, unsafe=True)`.
        statement: the statement to run, from `store.statement`.
        parameters: the parameters of the statement, by name.
        path: the file; its suffix determines the format: .parquet, .csv, .jsonl or .arrows.
        force: replace an existing file.

    Raises:
        UsageError: the suffix is unknown, or the file exists or cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in (*_DUCKDB_SUFFIXES, _ARROW_SUFFIX):
        raise UsageError(
            f"unknown file extension: {path.suffix or 'none'}",
            where=str(path),
            todo="Use a file name that ends in .parquet, .csv, .jsonl or .arrows",
        )
    streamer = _arrow_writer(path) if suffix == _ARROW_SUFFIX else None
    with new_file(path, force=force) as draft:
        if streamer is not None:
            return _write_stream(store.arrow(statement, parameters), draft, streamer)
        return store.write(statement, parameters, draft, suffix, escaped_starts=FORMULA_STARTS)


def _arrow_writer(path: Path) -> Any:
    """Return the class that writes Arrow streams.

    Raises:
        UsageError: nanoarrow is not installed.
    """
    try:
        return importlib.import_module("nanoarrow.ipc").StreamWriter
    except ImportError as error:
        raise UsageError(
            "writing Arrow needs the package nanoarrow",
            where=str(path),
            todo=f"{install_extra('arrow')}, or use a file name that ends in .parquet",
        ) from error


def _write_stream(source: Any, draft: Path, streamer: Any) -> int:
    """Write rows as a stream of Arrow batches; return their number."""
    rows = 0
    arrow = importlib.import_module("nanoarrow")
    with streamer.from_path(draft) as out:
        batches = arrow.c_array_stream(source)
        schema = batches.get_schema()
        out.write_stream(arrow.c_array_stream([], schema=schema), write_schema=True)
        for batch in batches:
            rows += len(batch)
            out.write_stream(batch, write_schema=False)
    return rows
