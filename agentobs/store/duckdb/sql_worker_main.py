"""The worker process of `sql_worker`: open the store, give up rights, and run queries.

Opening the store runs only our own code and may include an ingest, so the limits apply from the first query on. All
modules that query results need are imported before, because no file can be opened afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import re
import resource
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import duckdb

from agentobs.errors import AgentobsError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connected, select
from agentobs.store.duckdb.sql_worker import OUT_OF_MEMORY, Cut, Limits, too_wide
from agentobs.store.duckdb.worker_protocol import decoded, encoded, packed_row, unpack

NEEDED = ("datetime", "decimal", "uuid", "pytz", "collections.abc", "types", "typing")
"""Modules that DuckDB imports when it first converts a value of a type such as a date or a UUID."""
RESERVED_BYTES = 256 * 1024 * 1024
"""Additional address space, which threads reserve without using it. Our choice: memory in use has its own limit, which
is checked every `WATCH_SECONDS`.
"""
WATCH_SECONDS = 0.01
"""How often the memory in use is checked during a query. Our choice: about 20 MB can be filled in this time."""
BATCH = 256
"""The number of rows that are fetched from DuckDB at a time. It is low because a cell may be large. Our choice."""
TEXT = 500
"""The maximum length of a DuckDB error message that is sent to the parent, in characters. Our choice."""


def main() -> None:
    """Run queries until the parent process closes the pipe or dies."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out, queries = _pipes()
    settings = queries.get()
    limits = Limits(**settings["limits"])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            connection = _opened(Path(settings["home"]), settings["ingest"], limits)
    except Exception as error:
        _send(out, {"error": _error_message(error)})
        return
    memory = MemoryWatch(limits.memory_bytes)
    _confine(limits)
    _send(out, {"ready": [str(each.message)[:TEXT] for each in caught][:20]})
    while True:
        query = queries.get()
        _allow(limits)
        try:
            with memory.watched():
                _run(connection, query, limits, out)
        except BrokenPipeError:
            return
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _pipes() -> tuple[IO[bytes], queue.SimpleQueue[dict[str, Any]]]:
    """Return the stream for results and the queue of queries. Standard input and output are redirected to /dev/null, so
    that nothing else can use these streams.
    """
    out = os.fdopen(os.dup(1), "wb")
    source = os.fdopen(os.dup(0), "rb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    queries: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, queries), daemon=True).start()
    return out, queries


def _listen(source: IO[bytes], queries: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put received queries into the queue. When the parent closes the pipe, end this process, even during a query."""
    while (query := decoded(source)) is not None:
        queries.put(query)
    os._exit(0)


def _opened(home: Path, ingest: bool, limits: Limits) -> duckdb.DuckDBPyConnection:
    for name in NEEDED:
        importlib.import_module(name)
    connection = connected(Home(home), ingest=ingest, memory_bytes=limits.memory_bytes)
    # A first query loads everything else, such as the local time zone.
    connection.execute("SELECT now(), 1::DECIMAL(4, 2), uuid()").fetchall()
    return connection


class MemoryWatch:
    """Ends the process if a query uses more memory than its limit.

    The limit of address space cannot do this exactly, because threads reserve address space that they do not use.
    """

    def __init__(
        self, memory_bytes: int, end: Callable[[], None] = lambda: os._exit(OUT_OF_MEMORY)
    ) -> None:
        """Measure the memory in use; a query may add `memory_bytes`. Call this before files can no longer be opened."""
        try:
            # The file stays open, because no file can be opened later.
            self._file: IO[bytes] | None = Path("/proc/self/statm").open("rb", buffering=0)  # noqa: SIM115
        except OSError:
            self._file = None  # not supported by this system
        self._most_bytes = self._used_bytes() + memory_bytes
        self._end = end

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Check the memory in use until the context ends."""
        has_ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(has_ended,), daemon=True)
        if self._file is not None:
            thread.start()
        try:
            yield
        finally:
            has_ended.set()

    def _watch(self, has_ended: threading.Event) -> None:
        while not has_ended.wait(WATCH_SECONDS):
            if self._used_bytes() > self._most_bytes:
                self._end()
                return

    def _used_bytes(self) -> int:
        if self._file is None:
            return 0
        self._file.seek(0)
        return int(self._file.read(100).split()[1]) * resource.getpagesize()


def _confine(limits: Limits) -> None:
    """Permanently give up the rights to open files and sockets, to write files, and to exceed the memory limit."""
    limit = _address_space() + limits.memory_bytes + RESERVED_BYTES
    with contextlib.suppress(ValueError, OSError):  # not supported by all systems
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _allow(limits: Limits) -> None:
    """Raise the limit of processor time by the timeout of one query, multiplied by the number of cores."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    additional = limits.timeout_seconds * (os.cpu_count() or 1)
    limit = int(used.ru_utime + used.ru_stime + additional) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _run(
    connection: duckdb.DuckDBPyConnection, query: dict[str, Any], limits: Limits, out: IO[bytes]
) -> None:
    """Run a query and send its result or its error.

    Raises:
        BrokenPipeError: the parent no longer reads.
        MemoryError: there is not even enough memory to report an error.
    """
    try:
        _send_result(connection, query, limits, out)
    except BrokenPipeError:
        raise
    except Exception as error:
        message = _error_message(error)
        del error
        _send(out, {"error": message})
    finally:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")


def _send_result(
    connection: duckdb.DuckDBPyConnection, query: dict[str, Any], limits: Limits, out: IO[bytes]
) -> None:
    """Run a query, and send its columns and as many rows as the limits allow."""
    parameters = unpack(query["parameters"])
    _check_names(query["sql"])
    # Statements that only look like a query (WITH a AS (DELETE ...)) must not change the tail.
    connection.execute("BEGIN TRANSACTION READ ONLY")
    result = select(connection, query["sql"], parameters)
    columns = [str(column[0]) for column in result.description or []]
    if len(columns) > limits.columns:
        raise too_wide(len(columns), limits)
    names = encoded({"columns": columns})
    if len(names) > limits.answer_bytes:
        _send(out, {"columns": []})
        _send(out, {"end": "bytes"})
        return
    out.write(names)
    out.flush()  # so that the parent receives the columns before the first row is computed
    _send(out, {"end": _send_rows(result, limits, out)})


_CALL = r"\"?\s*(?:\(|/\*|--)"
"""The text after the name of a function: its arguments, or a comment before them. Comments are not parsed, because a
pattern for many of them takes exponential time.
"""
_MACHINE = re.compile(
    r"\b(duckdb_databases|duckdb_settings|duckdb_external_file_cache|pg_settings|pragma_database_list)\b"
    rf"|\b(query|query_table){_CALL}|\b(current_setting){_CALL}(?!\s*'timezone'\s*\))",
    re.IGNORECASE,
)
"""Functions and views that return paths of this machine, or run a statement that is the value of an expression."""


def _check_names(sql: str) -> None:
    """Refuse a statement whose result could contain paths of this machine, because results can be shared.

    Raises:
        UsageError: the statement names such a function.
    """
    if (named := _MACHINE.search(sql)) is not None:
        raise UsageError(
            f"{named[named.lastindex or 0]} is not available, because it can reveal paths of this machine",
            where="sql",
            todo="duckdb_tables() and duckdb_columns() describe the store",
        )


def _send_rows(result: duckdb.DuckDBPyConnection, limits: Limits, out: IO[bytes]) -> Cut | None:
    """Send the rows in batches; return the limit that cut them off, or None."""
    rows_allowed, bytes_allowed = limits.rows, limits.answer_bytes
    while rows := result.fetchmany(BATCH):
        packed = [packed_row(row) for row in rows[:rows_allowed]]
        message = _rows(packed)
        if len(message) > bytes_allowed:
            _send_fitting_rows(packed, bytes_allowed, out)
            return "bytes"
        out.write(message)
        rows_allowed, bytes_allowed = rows_allowed - len(packed), bytes_allowed - len(message)
        if len(packed) < len(rows):
            return "rows"
    return None


def _send_fitting_rows(packed: list[Any], bytes_allowed: int, out: IO[bytes]) -> None:
    """Send rows one by one, until the next row would exceed the limit."""
    for row in packed:
        message = _rows([row])
        bytes_allowed -= len(message)
        if bytes_allowed < 0:
            return
        out.write(message)


def _rows(packed: list[Any]) -> bytes:
    return encoded({"rows": packed})


def _send(out: IO[bytes], message: dict[str, Any]) -> None:
    out.write(encoded(message))
    out.flush()


def _error_message(error: Exception) -> dict[str, str]:
    """Convert an error to a message for the parent."""
    if isinstance(error, AgentobsError):
        message = {"kind": type(error).__name__, "found": error.found}
        return message | {"where": error.where, "todo": error.todo}
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
