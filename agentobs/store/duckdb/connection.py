"""The live view: a read-only connection that combines the published file and the live tail.

Query results include everything that was recorded before `connect` was called, whether or not it was ingested, and
counts never decrease. Readers never wait for a lock; if they cannot ingest, the tail is longer.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

import duckdb

from agentobs import world
from agentobs.errors import DamagedError, HomeError, UsageError
from agentobs.recording.journal.home import Home, existing_home
from agentobs.records.facts import TABLES
from agentobs.store.duckdb import generations, price_tables
from agentobs.store.duckdb.archives import united
from agentobs.store.duckdb.generations import Generation
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.journal_tail import Mark, Rows, batches, has_records, new_bytes
from agentobs.store.duckdb.loader import load, read_marks, save_marks
from agentobs.store.duckdb.schema import SETTINGS, cached_views, create_tables, create_views, newest
from agentobs.store.fact_columns import fact_columns
from agentobs.store.named_queries import bound
from agentobs.store.port import Parameters

NEW_BYTES = 2_000_000
"""A tail of this size in bytes is ingested; it contains about 5,000 records."""
NEW_SECONDS = 10
"""If a generation is at least this old, new records are ingested."""
SHARE = 50
"""In a large store the limit for the tail is this fraction of the file, so that copying stays a small part of the work.
"""
SECONDS_SIZE = 64 * 1024 * 1024
"""For a larger file, `NEW_SECONDS` grows in proportion to its size in bytes. A file of this size is written in about a
tenth of a second.
"""
TRIES = 3
"""The maximum number of times that the opening of a store is tried. It fails if another process replaces the store and
deletes its archives in the meantime.
"""


def connect(
    home: Home | str | os.PathLike[str] | None = None, *, ingest: bool = True, unsafe: bool = False
) -> duckdb.DuckDBPyConnection:
    """Return a read-only connection to everything that was recorded up to this moment.

    Statements cannot access files, the network or variables of this program, and cannot change settings. They run in
    this process, so they can use up its memory and time; for statements that you do not trust, use `query`.

    Args:
        home: where the recordings are; default `AGENTOBS_HOME`, else `.agentobs`.
        ingest: whether to update the published file first, if there is enough new data and no other process ingests.
        unsafe: whether statements can access files, the network, extensions and settings. The published file is
            read-only in any case.

    Raises:
        HomeError: there are no recordings at that place.
        ForeignError: the store file was not written by agentobs, or has a newer version.
        DamagedError: the store file is damaged, and there are no segments from which it could be rebuilt.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    return connected(place, ingest=ingest, unsafe=unsafe)


def connected(
    place: Home,
    *,
    ingest: bool,
    memory_bytes: int | None = None,
    unsafe: bool = False,
) -> duckdb.DuckDBPyConnection:
    """Return the connection of `connect`, with a limit on the memory that DuckDB counts."""
    if ingest:
        _ingest_if_due(place)
    connection = duckdb.connect(config=SETTINGS)
    try:
        is_united = False
        for _ in range(TRIES if os.path.lexists(place.database) else 0):
            before = generations.generations(place)
            if is_united := _unite(connection, place):
                break
            connection.close()
            connection = duckdb.connect(config=SETTINGS)
            if generations.generations(place) == before:
                break
        if not is_united:
            generations.refuse_without_segments(place)
            _read_all(connection, place)
        # Write nothing next to a store file that was copied without its home.
        is_home = place.segments.is_dir()
        create_views(connection, cached_views(place.path, write=ingest and is_home))
        _hide_progress_bar(connection)
        if memory_bytes is not None:
            connection.execute(f"SET memory_limit = '{memory_bytes} B'")
        if not unsafe:
            _lock_down(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Turn the progress bar off, because it would be mixed into the output of a command.

    In a notebook without ipywidgets it is off, and DuckDB refuses to change the setting.
    """
    [is_shown] = connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() or [
        True
    ]
    if is_shown:
        connection.execute("SET enable_progress_bar = false")


def named(
    connection: duckdb.DuckDBPyConnection, name: str, /, **parameters: Any
) -> duckdb.DuckDBPyConnection:
    """Run a named query and return its result.

    A parameter that is not given is NULL, which means no limit or no filter.

    Raises:
        UsageError: there is no such query, or it has no such parameter.
    """
    return connection.execute(*bound(name, parameters))


def select(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Parameters = None
) -> duckdb.DuckDBPyConnection:
    """Run one SELECT statement and return its result.

    Raises:
        UsageError: `sql` is not exactly one SELECT statement.
        duckdb.Error: DuckDB refused the statement.
    """
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or not _is_select(connection, statements[0]):
        raise UsageError(
            "expected exactly one SELECT statement",
            where="sql",
            todo="Pass one statement that starts with SELECT, WITH, FROM, EXPLAIN, DESCRIBE, SUMMARIZE or SHOW",
        )
    return connection.execute(statements[0], parameters)


def _is_select(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> bool:
    """Return whether a statement is a SELECT, in any of its forms, or an EXPLAIN of one."""
    if statement.type == duckdb.StatementType.EXPLAIN:
        explained = _EXPLAIN.sub("", statement.query, count=1)
        inner = connection.extract_statements(explained)
        return len(inner) == 1 and inner[0].type == duckdb.StatementType.SELECT
    return bool(statement.type == duckdb.StatementType.SELECT)


_EXPLAIN = re.compile(r"\s*EXPLAIN\b\s*(?:ANALYZE\b)?\s*(?:\([^()]*\)(?=\s*[A-Z]))?", re.IGNORECASE)
"""The prefix of an explained statement. If the prefix does not match, for example because it contains a comment, the
statement is refused.
"""


def is_due(generation: Generation, new_bytes: int, now_ns: int) -> bool:
    """Return whether there is so much new data, or the generation is so old, that it should be replaced."""
    if new_bytes <= 0:
        return False
    growth = max(1.0, generation.bytes / SECONDS_SIZE)
    is_old = now_ns - generation.published_ns >= NEW_SECONDS * 1_000_000_000 * growth
    return is_old or new_bytes >= max(NEW_BYTES, generation.bytes // SHARE)


def _ingest_if_due(home: Home) -> None:
    """Ingest if it is due and no other process ingests. Otherwise, the new records are read as the tail."""
    generation = generations.quick_current(home)
    if generation is None:
        due = bool(generations.generations(home)) or has_records(home)
    else:
        due = is_due(generation, new_bytes(home, generation.read), world.now())
    if due:
        try:
            ingest(home, wait_seconds=0, is_awaited=True)
        except (HomeError, OSError):
            return


def _unite(connection: duckdb.DuckDBPyConnection, home: Home) -> bool:
    """Combine the published file, its archives and the tail; return False if there is no usable published file."""
    try:
        if generations.current(home) is None or generations.attach(connection, home) < newest():
            return False
        archived = generations.attach_archives(connection, home, generations.listed(connection))
        if any(layout < newest() for layout in archived.values()):
            return False
        marks = read_marks(connection, "published.main.segments")
    except (DamagedError, duckdb.Error):
        return False
    connection.execute("CREATE SCHEMA tail")
    loaded, changed = _load_tail(connection, home, marks)
    for table in TABLES.values():
        more = f" UNION ALL BY NAME FROM tail.{table}" if table in loaded else ""
        stored = united(table, archived, "published.main")
        connection.execute(f"CREATE VIEW {table} AS {stored}{more}")
    _unite_segments(connection, changed)
    _unite_prices(connection, home, changed if "usage" in loaded else {})
    return True


def _load_tail(
    connection: duckdb.DuckDBPyConnection, home: Home, marks: dict[str, Mark]
) -> tuple[set[str], dict[str, Mark]]:
    """Load the tail into tables of the schema `tail`; return the names of the tables, and the changed marks."""
    loaded: set[str] = set()
    changed: dict[str, Mark] = {}
    for rows in batches(home, marks):
        for table in rows.tables.keys() - loaded:
            columns = ", ".join(f"{name} {kind}" for name, kind in fact_columns(table).items())
            connection.execute(f"CREATE TABLE tail.{table} ({columns})")
            loaded.add(table)
        load(connection, rows, "tail")
        changed |= rows.marks
        _warn(rows)
    return loaded, changed


def _unite_segments(connection: duckdb.DuckDBPyConnection, changed: Mapping[str, Mark]) -> None:
    kind = "TABLE" if changed else "VIEW"
    connection.execute(f"CREATE {kind} segments AS FROM published.main.segments")
    save_marks(connection, changed)


def _unite_prices(
    connection: duckdb.DuckDBPyConnection, home: Home, changed: Mapping[str, Mark]
) -> None:
    """Create `prices` with current prices for the published file and the tail. Prices that are looked up here are not
    stored; the next ingest stores them.
    """
    published, contexts = "published.main.prices", []
    if changed:
        contexts = price_tables.new_contexts(connection, "tail.usage", published, list(changed))
    book = price_tables.readable_book(home.path)
    stale = not price_tables.is_unread(book) and price_tables.is_stale(connection, book, published)
    if not (contexts or stale):
        connection.execute(f"CREATE VIEW prices AS FROM {published}")
        return
    connection.execute(f"CREATE TABLE prices AS FROM {published}")
    if stale:
        price_tables.renew(connection, book)
    price_tables.add(connection, contexts, book)


def _read_all(connection: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Read all segments into memory, without a published file."""
    create_tables(connection)
    book = price_tables.readable_book(home.path)
    for rows in batches(home, {}):
        load(connection, rows)
        save_marks(connection, rows.marks)
        contexts = price_tables.new_contexts(connection, "usage", "prices", list(rows.marks))
        price_tables.add(connection, contexts, book)
        _warn(rows)


def _lock_down(connection: duckdb.DuckDBPyConnection) -> None:
    """Disable everything except reading. The last setting locks the configuration."""
    for setting in (
        "python_scan_all_frames = false",
        "allow_community_extensions = false",
        "allow_persistent_secrets = false",
        # Without a directory for temporary files, queries that do not fit into memory fail. With such a directory,
        # statements could write to it.
        "temp_directory = ''",
        "enable_external_access = false",
        # The setting above is not enough: COPY and read_blob could still access the published file, and the
        # write-ahead log next to it. Files that are already open stay open.
        "disabled_filesystems = 'LocalFileSystem'",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")


def _warn(rows: Rows) -> None:
    for path in rows.refused:
        warnings.warn(
            f"agentobs: {path} was written by a newer version and is not included in results",
            RuntimeWarning,
            stacklevel=2,
        )


__all__ = ["connect", "connected", "is_due", "named", "select"]
