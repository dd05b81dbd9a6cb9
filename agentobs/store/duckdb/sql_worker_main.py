"""The other half of `sql_worker`: opens the store, gives up its rights, and answers queries.

Our own code opens the store, and may have to ingest; the limits apply from the first query on. All modules that an
answer needs are imported before, because afterwards no file can be opened.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import resource
import threading
import warnings
from pathlib import Path
from typing import IO, Any

import duckdb

from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connected, select
from agentobs.store.duckdb.sql_worker import OUT_OF_MEMORY, Cut, Limits, too_wide
from agentobs.store.duckdb.worker_protocol import decoded, encoded, packed_row, unpack

NEEDED = ("datetime", "decimal", "uuid", "pytz", "collections.abc", "types", "typing")
"""Modules that DuckDB imports when it first encounters a value of such a type."""
RESERVED_BYTES = 256 * 1024 * 1024
"""Address space beyond the limit, which threads reserve and do not use. Our choice."""
BATCH = 256
"""How many rows are fetched from DuckDB at a time: few, because a cell may be large. Our choice."""
TEXT = 500
"""How much of an error message of DuckDB is passed on, characters. Our choice."""


def main() -> None:
    """Answer queries until the parent process closes the pipe, or has died."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out, questions = _pipes()
    told = questions.get()
    limits = Limits(**told["limits"])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            connection = _opened(Path(told["home"]), told["ingest"], limits)
    except Exception as error:
        _send(out, {"error": _told(error)})
        return
    _confine(limits)
    _send(out, {"ready": [str(each.message)[:TEXT] for each in caught][:20]})
    while True:
        question = questions.get()
        _allow(limits)
        try:
            _try_to_answer(connection, question, limits, out)
        except BrokenPipeError:
            return
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _pipes() -> tuple[IO[bytes], queue.SimpleQueue[dict[str, Any]]]:
    """Return the streams for answers and queries; nothing else may write to them."""
    out = os.fdopen(os.dup(1), "wb")
    source = os.fdopen(os.dup(0), "rb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, questions), daemon=True).start()
    return out, questions


def _listen(source: IO[bytes], questions: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass queries on, and end this process when its parent has gone, whatever it is doing."""
    while (question := decoded(source)) is not None:
        questions.put(question)
    os._exit(0)


def _opened(home: Path, ingest: bool, limits: Limits) -> duckdb.DuckDBPyConnection:
    for name in NEEDED:
        importlib.import_module(name)
    connection = connected(Home(home), ingest=ingest, memory_bytes=limits.memory_bytes)
    # The first answer loads the rest, such as the time zone of displayed times.
    connection.execute("SELECT now(), 1::DECIMAL(4, 2), uuid()").fetchall()
    return connection


def _confine(limits: Limits) -> None:
    """Give up, permanently, the rights to open files and sockets, to write files, and to use more memory."""
    most = _address_space() + limits.memory_bytes + RESERVED_BYTES
    with contextlib.suppress(ValueError, OSError):  # not every system can
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _allow(limits: Limits) -> None:
    """Allow processor time for one more query: all of its time, on every core."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    more = limits.timeout_seconds * (os.cpu_count() or 1)
    most = int(used.ru_utime + used.ru_stime + more) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def _try_to_answer(
    connection: duckdb.DuckDBPyConnection, question: dict[str, Any], limits: Limits, out: IO[bytes]
) -> None:
    """Answer, or report the error.

    Raises:
        BrokenPipeError: the parent no longer reads.
        MemoryError: there is not even enough memory to report it.
    """
    try:
        _answer(connection, question, limits, out)
    except BrokenPipeError:
        raise
    except Exception as error:
        told = _told(error)
        del error
        _send(out, {"error": told})
    finally:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")


def _answer(
    connection: duckdb.DuckDBPyConnection, question: dict[str, Any], limits: Limits, out: IO[bytes]
) -> None:
    """Send the columns and rows of an answer, as far as the limits allow."""
    parameters = unpack(question["parameters"])
    # Statements that only look like a query (WITH a AS (DELETE ...)) must not change the tail.
    connection.execute("BEGIN TRANSACTION READ ONLY")
    answered = select(connection, question["sql"], parameters)
    columns = [str(column[0]) for column in answered.description or []]
    if len(columns) > limits.columns:
        raise too_wide(len(columns), limits)
    names = encoded({"columns": columns})
    if len(names) > limits.answer_bytes:
        _send(out, {"columns": []})
        _send(out, {"end": "bytes"})
        return
    out.write(names)
    out.flush()  # so that the parent has them before the first row
    _send(out, {"end": _send_rows(answered, limits, out)})


def _send_rows(answered: duckdb.DuckDBPyConnection, limits: Limits, out: IO[bytes]) -> Cut | None:
    """Send rows as they come; return why they were cut off, if they were."""
    left_rows, left_bytes = limits.rows, limits.answer_bytes
    while rows := answered.fetchmany(BATCH):
        packed = [packed_row(row) for row in rows[:left_rows]]
        message = _rows(packed)
        if len(message) > left_bytes:
            _send_what_fits(packed, left_bytes, out)
            return "bytes"
        out.write(message)
        left_rows, left_bytes = left_rows - len(packed), left_bytes - len(message)
        if len(packed) < len(rows):
            return "rows"
    return None


def _send_what_fits(packed: list[Any], left_bytes: int, out: IO[bytes]) -> None:
    """Send the rows up to the one that would exceed the limit, one by one."""
    for row in packed:
        message = _rows([row])
        left_bytes -= len(message)
        if left_bytes < 0:
            return
        out.write(message)


def _rows(packed: list[Any]) -> bytes:
    return encoded({"rows": packed})


def _send(out: IO[bytes], message: dict[str, Any]) -> None:
    out.write(encoded(message))
    out.flush()


def _told(error: Exception) -> dict[str, str]:
    """Return an error as a message."""
    if isinstance(error, AgentobsError):
        told = {"kind": type(error).__name__, "found": error.found}
        return told | {"where": error.where, "todo": error.todo}
    if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
        return {"limit": "memory"}
    lines = str(error).splitlines() or [type(error).__name__]
    found = lines[0][:TEXT].rstrip(".!")
    if not isinstance(error, duckdb.Error):
        found = f"{type(error).__name__}: {found}"
    return {"kind": "UsageError", "found": found, "where": "sql", "todo": _TODO}


_TODO = "docs/tables.md lists all columns, docs/sql.md explains the dialect"


def _address_space() -> int:
    """Return the size of this process's address space in bytes; 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


if __name__ == "__main__":
    main()
