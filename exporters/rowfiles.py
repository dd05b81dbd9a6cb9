"""Rows as a file of their own, Parquet, CSV or JSON lines, streamed by DuckDB."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from agentobs import world
from agentobs.errors import UsageError

_FORMS = {
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".csv": "FORMAT csv, HEADER",
    ".jsonl": "FORMAT json",
}
_FORMULA = "^[=+@\\t\\r-]"
"""How a text begins that a spreadsheet would compute."""


def write_file(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any],
    path: Path,
    *,
    force: bool = False,
) -> int:
    """Write the rows of a SELECT statement to a new file, streamed by DuckDB; return how many.

    The file is for its owner alone (0600), and is there when it is whole. In CSV a text that a spreadsheet would
    compute gets a quote in front, as in `tabular.write_csv`.

    Args:
        connection: one that may write files: `connect(home, unsafe=True)`.
        sql: one SELECT statement of ours.
        parameters: its parameters, by name.
        path: where; its ending says the form: .parquet, .csv or .jsonl.
        force: replace what is there.

    Raises:
        UsageError: the ending is another one, the file exists, or it cannot be written there.
    """
    options = _FORMS.get(path.suffix.lower())
    if options is None:
        raise UsageError(
            f"no form of that ending: {path.suffix or 'none'}",
            where=str(path),
            todo="Name a file that ends in .parquet, .csv or .jsonl",
        )
    if not force and (path.exists() or path.is_symlink()):
        raise UsageError(
            "the file exists", where=str(path), todo="Name another one, or say --force"
        )
    draft = path.with_name(f".{path.name}.{world.new_id()}")
    try:
        _create(draft)
        chosen = _chosen(connection, sql, parameters, path.suffix.lower())
        place = str(draft).replace("'", "''")
        copy = f"COPY ({chosen}) TO '{place}' ({options}, USE_TMP_FILE false)"
        row = connection.execute(copy, dict(parameters)).fetchone()
        if force:
            draft.replace(path)
        else:
            os.link(draft, path)
    except FileExistsError as error:
        raise _unwritable(path, "it was made by somebody else at this moment") from error
    except (duckdb.IOException, OSError) as error:
        raise _unwritable(path, str(error).partition("\n")[0]) from error
    finally:
        draft.unlink(missing_ok=True)
    return row[0] if row else 0


def _create(path: Path) -> None:
    """Create an empty file for its owner alone, whatever the umask."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)


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


def _unwritable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"cannot be written: {why}", where=str(path), todo="Name a file in a directory of your own"
    )
