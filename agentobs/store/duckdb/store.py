"""The DuckDB implementation of the store port."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import duckdb

from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import Recording
from agentobs.store.duckdb import row_writing, session_facts, session_listing
from agentobs.store.named_queries import bare_text, bound, query_names, query_parameters
from agentobs.store.port import Parameters, QueryError, Result, Row, SegmentRange, Statement, Table


class DuckStore:
    """A store in a connection of `connect`; see `agentobs.store.port.Store` for the methods."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        home: Home,
        listing_lock: threading.Lock | None = None,
    ) -> None:
        """Wrap a connection.

        Args:
            connection: the result of `agentobs.connect`; the store closes it.
            home: the home of the connection.
            listing_lock: the lock for changes of the session list, shared by all readers of one state.
        """
        self.connection = connection
        self._home = home
        self._listing_lock = listing_lock or threading.Lock()

    @property
    def home(self) -> Home:
        """The home whose recordings the store contains."""
        return self._home

    def rows(self, query: str, /, **parameters: Any) -> Table:
        """Run a named query."""
        sql, values = bound(query, parameters)
        with _translated_errors():
            result = self.connection.execute(sql, values)
            return Table(_columns(result), result.fetchall())

    def sql(self, text: str, parameters: Parameters = None) -> Result:
        """Run a statement that the user wrote."""
        with _translated_errors():
            result = self.connection.execute(text, parameters or None)
            return Result(_columns(result), _fetched(result))

    def facts(self, session_ids: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield the facts of sessions."""
        with _translated_errors():
            yield from session_facts.of_sessions(self.connection, session_ids)

    def facts_in(self, within: SegmentRange) -> Iterator[tuple[str, int, Any]]:
        """Yield the facts of a range of a segment."""
        with _translated_errors():
            yield from session_facts.of_range(self.connection, within)

    def count_facts(self, within: SegmentRange) -> int:
        """Return the number of facts in a range of a segment."""
        with _translated_errors():
            return session_facts.count(self.connection, within)

    def fact_ranges(
        self, *, since_ns: int | None = None, session_ids: Sequence[str] | None = None
    ) -> list[Row]:
        """Return one row for each session and segment."""
        with _translated_errors():
            return session_facts.ranges(self.connection, since_ns, session_ids)

    def content(self, session_id: str, *, bodies: Container[str] | None = None) -> Recording:
        """Read the recording of a session, with its content, from the vault."""
        rows = self.rows("session_segments", session_id=session_id).rows
        return read_session(self._home, session_id, [str(row[0]) for row in rows], bodies=bodies)

    def statement(self, name: str) -> Statement:
        """Return the statement for a named query, table or view."""
        with _translated_errors():
            relations = {row[0] for row in self.connection.execute(_RELATIONS).fetchall()}
        if name in relations:
            return Statement(f'SELECT * FROM "{name}"', frozenset())
        if name not in query_names():
            raise UsageError(
                "no query, table or view has that name",
                where=name,
                todo=f"docs/tables.md describes the tables; the queries are {', '.join(query_names())}",
            )
        return Statement(bare_text(name), query_parameters(name))

    def write(
        self,
        statement: Statement,
        parameters: Mapping[str, Any],
        path: Path,
        ending: str,
        *,
        escaped_starts: Sequence[str] = (),
    ) -> int:
        """Write the rows of a statement to a file."""
        with _translated_errors():
            return row_writing.write(
                self.connection, statement.text, parameters, path, ending, escaped_starts
            )

    def arrow(self, statement: Statement, parameters: Mapping[str, Any]) -> Any:
        """Return the rows of a statement as an object with the Arrow C stream interface."""
        with _translated_errors():
            return row_writing.arrow(self.connection, statement.text, parameters)

    def prepare_listing(self) -> None:
        """Create the tables of the session list."""
        session_listing.make_tables(self.connection)

    def adopt_findings(self, previous: Self) -> None:
        """Copy the findings of sessions that have not changed since the previous state."""
        with previous.connection.cursor() as before:
            session_listing.adopt_findings(before, self.connection)

    def complete_findings(self) -> bool:
        """Add the missing findings; return whether any were missing."""
        with _translated_errors():
            is_new = session_listing.complete_findings(self.connection)
            # Even if none are new: an earlier call may have failed after it had added them.
            with self._listing_lock:
                session_listing.update_listing(self.connection)
            return is_new

    def add_titles(self, titles: Mapping[str, str]) -> None:
        """Add titles to the searchable text of the session list."""
        if titles:
            with _translated_errors(), self._listing_lock:
                session_listing.add_titles(self.connection, titles)

    def cursor(self) -> Self:
        """Return another reader of the same state, for another thread."""
        return type(self)(self.connection.cursor(), self._home, self._listing_lock)

    def interrupt(self) -> None:
        """Stop the query that runs now."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Convert errors of DuckDB to errors of the port."""
    try:
        yield
    except duckdb.Error as error:
        raise QueryError(str(error).partition("\n")[0].rstrip(".!"), where="sql") from error


def _columns(result: duckdb.DuckDBPyConnection) -> list[str]:
    return [str(column[0]) for column in result.description or []]


def _fetched(result: duckdb.DuckDBPyConnection) -> Iterator[Row]:
    with _translated_errors():
        while (row := result.fetchone()) is not None:
            yield row


_RELATIONS = """
    SELECT table_name FROM duckdb_tables()
    WHERE NOT internal AND schema_name = 'main' AND database_name = current_database()
    UNION
    SELECT view_name FROM duckdb_views()
    WHERE NOT internal AND schema_name = 'main' AND database_name = current_database()
"""
