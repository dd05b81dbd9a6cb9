"""The port of the store: the interface for commands, pages and exporters, without SQL or types of a database."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from agentobs.errors import AgentobsError
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import Recording

Row = tuple[Any, ...]
Parameters = Sequence[Any] | Mapping[str, Any] | None
"""The values of `?` or of `$name` in a statement."""


class QueryError(AgentobsError):
    """The database refused or stopped a query, for example because the memory limit was reached."""


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of a result."""

    columns: list[str]
    """Column names; a name may occur twice."""
    rows: list[Row]
    """One tuple per row, in the order of the columns."""

    def dicts(self) -> list[dict[str, Any]]:
        """Return the rows as mappings from column name to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def first(self) -> dict[str, Any] | None:
        """Return the first row as a mapping, or None if there are no rows."""
        return dict(zip(self.columns, self.rows[0], strict=True)) if self.rows else None


@dataclass(frozen=True, slots=True)
class Result:
    """A result whose rows are fetched one by one."""

    columns: list[str]
    """Column names; a name may occur twice."""
    rows: Iterator[Row]
    """The rows, to be iterated once. Iteration raises `QueryError` if the query fails."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A query that a store can write to a file; only that store can interpret its text."""

    text: str
    parameters: frozenset[str]
    """The names of its parameters."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The records of one session in one segment with numbers above `after`, up to `last`."""

    session_id: str
    segment_id: str
    after: int
    last: int


class Store(Protocol):
    """One state of a store, open for reading. Close it after use; it is also a context manager.

    Each query is a file in `queries/`; see `agentobs.store.named_queries`. Use each object in one thread only;
    `cursor` returns another object for the same state.
    """

    @property
    def home(self) -> Home:
        """The home whose recordings the store contains."""

    def rows(self, query: str, /, **parameters: Any) -> Table:
        """Run a named query. Parameters that are not given are NULL, which means no limit or no filter.

        Raises:
            UsageError: there is no such query, or it has no such parameter.
            QueryError: the database refused or stopped the query.
        """

    def sql(self, text: str, parameters: Parameters = None) -> Result:
        """Run a statement that the user wrote.

        Raises:
            QueryError: the database refused the statement.
        """

    def facts(self, session_ids: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Yield the facts of sessions as (segment ID, record number, fact), in no particular order."""

    def facts_in(self, within: SegmentRange) -> Iterator[tuple[str, int, Any]]:
        """Yield the facts of a range of a segment, as `facts` does."""

    def count_facts(self, within: SegmentRange) -> int:
        """Return the number of facts in a range of a segment."""

    def fact_ranges(
        self, *, since_ns: int | None = None, session_ids: Sequence[str] | None = None
    ) -> list[Row]:
        """Return one row for each session and segment, the oldest session first.

        Columns: session ID, start in nanoseconds since 1970 or None, whether the session is over, version of the
        recorder, content mode, live destinations or None, segment ID, last record number, number of facts.

        Args:
            since_ns: only sessions that started at or after this time; None for all.
            session_ids: only these sessions; None for all.
        """

    def content(self, session_id: str, *, bodies: Container[str] | None = None) -> Recording:
        """Read the recording of a session, with its content, from the vault.

        Args:
            session_id: the full ID.
            bodies: the IDs of the attempts whose request bodies are read; None for all.

        Raises:
            RecordingError, DamagedError: as for `read_session`.
        """

    def statement(self, name: str) -> Statement:
        """Return the statement for a named query, table or view.

        Raises:
            UsageError: there is no query, table or view of that name.
        """

    def write(
        self,
        statement: Statement,
        parameters: Mapping[str, Any],
        path: Path,
        ending: str,
        *,
        escaped_starts: Sequence[str] = (),
    ) -> int:
        """Write the rows of a statement to an existing, empty file; return their number.

        Args:
            statement: the result of the method `statement`.
            parameters: the values of its parameters, by name.
            path: the file.
            ending: the suffix that determines the format: .parquet, .csv or .jsonl.
            escaped_starts: in CSV, text that starts with one of these characters gets a leading quote.

        Raises:
            OSError: the file cannot be written.
        """

    def arrow(self, statement: Statement, parameters: Mapping[str, Any]) -> Any:
        """Return the rows of a statement as an object with the Arrow C stream interface."""

    def prepare_listing(self) -> None:
        """Create the tables of the session list, for the queries in `queries/listing/`.

        `complete_findings` adds the findings to them.
        """

    def adopt_findings(self, previous: Self) -> None:
        """Copy the findings of sessions that have not changed since the previous state."""

    def complete_findings(self) -> bool:
        """Add the missing findings to the tables of the session list; return whether any were missing.

        Raises:
            QueryError: there is not enough memory, or the query was interrupted.
        """

    def add_titles(self, titles: Mapping[str, str]) -> None:
        """Add titles to the searchable text of the session list, in addition to the facts.

        Args:
            titles: the case-folded title of each session, by session ID. They replace earlier titles.

        Raises:
            QueryError: there is not enough memory, or the query was interrupted.
        """

    def cursor(self) -> Self:
        """Return another reader of the same state, for another thread."""

    def interrupt(self) -> None:
        """Stop the running query; call this from another thread."""

    def close(self) -> None:
        """Close the store."""

    def __enter__(self) -> Self:
        """Return the store."""

    def __exit__(self, *_: object) -> None:
        """Close the store."""
