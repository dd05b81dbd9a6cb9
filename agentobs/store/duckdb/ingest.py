"""Ingest: new records of the segments become the next generation of the published file.

Each record is counted exactly once, no matter how often ingest runs or when it is killed, because the watermark of each
segment is in the same file as its rows, and this file is replaced atomically.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from agentobs.errors import DamagedError, HomeError
from agentobs.ledger import PriceBook
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import forms
from agentobs.store.duckdb import archives, generations, price_tables
from agentobs.store.duckdb.generations import Generation
from agentobs.store.duckdb.journal_tail import Mark, Rows, batches
from agentobs.store.duckdb.loader import load, read_marks, save_marks
from agentobs.store.duckdb.schema import SETTINGS, newest, transaction
from agentobs.store.duckdb.segment_compression import Compressed, compress_ended
from agentobs.store.duckdb.segment_rewrite import apply_prunings

WAIT_SECONDS = 10.0
"""How long an ingest waits for another one that is running."""


@dataclass(slots=True)
class IngestReport:
    """The result of an ingest."""

    busy: bool = False
    """Whether nothing was done because another process was still ingesting at the end of the wait."""
    published: bool = False
    """Whether a new generation was published; False if there was nothing new."""
    generation: int = 0
    """The number of the published generation; 0 if there is none."""
    records: int = 0
    """Number of added records."""
    segments: int = 0
    """Number of segments with new records."""
    damaged_records: int = 0
    """Number of damaged ranges in the new data."""
    missing_records: int = 0
    """Number of missing sequence numbers in the new data."""
    unknown_records: int = 0
    """Number of records of a kind that this version does not know; they stay in their segment."""
    misfit_records: int = 0
    """Number of readable records that are not valid facts."""
    pruned_rows: int = 0
    """Number of deleted rows of pruned sessions."""
    archived_sessions: int = 0
    """Number of sessions of past months that moved to archives."""
    refused: list[Path] = field(default_factory=list)
    """Segments of a newer format, which were skipped."""
    damaged_moved_to: Path | None = None
    """The path to which a damaged generation was moved before the store was rebuilt; None if it was not damaged."""
    compressed: Compressed = field(default_factory=Compressed)
    """The compressed files of ended segments."""
    uncompressed: str = ""
    """Why compression stopped early or did not start; empty if it succeeded."""

    def lines(self) -> list[str]:
        """Return the report as lines: what was done, then what was found."""
        if self.busy:
            return ["another process is ingesting; nothing was done"]
        done = f"{self.records} records from {self.segments} segments"
        first = f"generation {self.generation}: {done}" if self.published else "nothing new"
        found = {
            "parts of segments cannot be read": self.damaged_records,
            "records are missing": self.missing_records,
            "records have a kind that this version does not know": self.unknown_records,
            "records are not facts": self.misfit_records,
        }
        return [
            first,
            *(f"{count} {what}" for what, count in found.items() if count),
            *(
                [f"{self.pruned_rows} rows of pruned sessions were deleted"]
                if self.pruned_rows
                else []
            ),
            *(
                [f"{moved} sessions of past months archived"]
                if (moved := self.archived_sessions)
                else []
            ),
            *(f"{path}: newer format, skipped" for path in self.refused),
            *([str(self.compressed)] if self.compressed.files else []),
            *([f"segments are not compressed: {self.uncompressed}"] if self.uncompressed else []),
            *(
                [f"the published file was damaged, moved to {self.damaged_moved_to} and rebuilt"]
                if self.damaged_moved_to
                else []
            ),
        ]


def ingest(
    home: Home, *, wait_seconds: float = WAIT_SECONDS, is_awaited: bool = False
) -> IngestReport:
    """Update the published file from the segments, then compress segments that have ended.

    Args:
        home: the home of the segments.
        wait_seconds: how long to wait for another process that is ingesting.
        is_awaited: whether a reader waits for the result. In this case the amount of compression is limited.

    Raises:
        ForeignError: the store file was not written by agentobs, or has a newer version.
        DamagedError: the store file is damaged, and there are no segments from which it could be rebuilt.
        HomeError: the store could not be written, for example because the disk is full; the current file stays
            published.
        OSError: the home cannot be written at all.
    """
    with generations.locked(home, wait_seconds) as held:
        if not held:
            return IngestReport(busy=True)
        generations.clear_drafts(home)
        try:
            return _ingest(home, is_awaited)
        except DamagedError:
            generations.refuse_without_segments(home)
            place = generations.move_damaged(home)
            report = _ingest(home, is_awaited)
            report.damaged_moved_to = place
            return report
        finally:
            generations.clear_drafts(home)


def _ingest(home: Home, is_awaited: bool) -> IngestReport:
    """Ingest while the caller holds the lock.

    Raises:
        DamagedError: the published file is damaged and must be rebuilt.
    """
    book = price_tables.readable_book(home.path)
    generation, marks, is_old = _published(home, book)
    archives.clear(home, generation.archives if generation else ())
    report = IngestReport()
    try:
        _advance(home, generation, marks, is_old, book, report)
    except (OSError, duckdb.Error) as error:
        if generation and not _is_as_published(home, generation):
            raise DamagedError(generations.first_line(error), where=str(home.database)) from error
        if isinstance(error, duckdb.ProgrammingError):
            raise
        raise HomeError(
            f"the store could not be written: {generations.first_line(error)}",
            where=str(home.database),
            todo="All recordings are safe in the segments; free disk space and ingest again",
        ) from error
    try:
        report.compressed = compress_ended(home, marks, is_awaited=is_awaited)
    except OSError as error:
        report.uncompressed = generations.first_line(error)
    return report


def _is_as_published(home: Home, generation: Generation) -> bool:
    """Return whether the published file and its archives match their digests."""
    files = {home.database: generation.digest}
    files |= {home.archive / each.name: each.digest for each in generation.archives}
    return all(
        path.exists() and generations.file_digest(path) == digest for path, digest in files.items()
    )


def _published(home: Home, book: PriceBook) -> tuple[Generation | None, dict[str, Mark], bool]:
    """Return the published generation, its marks, and whether it must be replaced even if there is nothing new."""
    generation = generations.current(home)
    if generation is None:
        return None, {}, True
    with duckdb.connect(config=SETTINGS) as connection:
        layout = generations.attach(connection, home)
        try:
            marks = read_marks(connection, "published.main.segments")
            is_old = layout < newest() or _is_stale(connection, book, "published.main.prices")
        except duckdb.Error as error:
            raise DamagedError(generations.first_line(error), where=str(home.database)) from error
    return generation, marks, is_old


def _is_stale(connection: duckdb.DuckDBPyConnection, book: PriceBook, prices: str) -> bool:
    """Return whether stored calls must be priced again; False if the price file could not be read."""
    return not price_tables.is_unread(book) and price_tables.is_stale(connection, book, prices)


def _advance(
    home: Home,
    generation: Generation | None,
    marks: dict[str, Mark],
    is_old: bool,
    book: PriceBook,
    report: IngestReport,
) -> None:
    """Read new records, and publish them if there are any."""
    report.generation = generation.number if generation else 0
    pending = batches(home, marks)
    first = next(pending)
    if not first.marks and not is_old:
        _count(first, report)
        return
    path = generations.draft(home, copy=generation is not None)
    read_now: list[str] = []
    before = generation.archives if generation else ()
    sealed = archives.renewed(home, before)
    with transaction(path) as connection:
        archived = generations.attach_archives(connection, home, sealed)
        if _is_stale(connection, book, "prices"):
            with archives.costs_of_all(connection, archived):
                price_tables.renew_and_report(connection, book)
        for rows in itertools.chain([first], pending):
            read_now += rows.marks
            report.records += load(connection, rows)
            _count(rows, report)
            save_marks(connection, rows.marks)
            marks |= rows.marks
            contexts = price_tables.new_contexts(connection, "usage", "prices", list(rows.marks))
            price_tables.add(connection, contexts, book)
        pruned = apply_prunings(connection, home, marks, read_now, archived)
        if pruned is not None:
            report.pruned_rows = pruned.rows
            sealed, removed = archives.without(home, sealed, pruned.sessions)
            report.pruned_rows += removed
        if sealed != before:
            archives.note(connection, sealed)
    past = archives.sessions_by_month(path) if archives.is_large(path) else {}
    moved = list(itertools.chain(*past.values()))
    if pruned is not None or moved:
        sealed += archives.seal(home, path, past)
        path = _compacted(home, path, moved, sealed)
    report.archived_sessions = len(moved)
    facts_bytes = sum(mark.facts_offset for mark in marks.values())
    read = {name: marks[name].facts_offset for name in _plain(home) if name in marks}
    done = generations.publish(home, path, facts_bytes, generation, read, sealed)
    report.generation, report.published = done.number, True
    archives.clear(home, sealed)


def _compacted(
    home: Home, path: Path, archived: Sequence[str], sealed: Sequence[generations.Archive]
) -> Path:
    """Copy a draft to a new draft that has no blocks of deleted data, and no rows of archived sessions."""
    compacted = generations.draft(home, copy=False)
    before = str(path).replace("'", "''")
    stays = "WHERE session_id IS NULL OR session_id NOT IN (SELECT unnest(?::VARCHAR[]))"
    with transaction(compacted) as connection:
        connection.execute(f"ATTACH '{before}' AS before (READ_ONLY)")
        for (table,) in connection.execute(_OUR_TABLES).fetchall():
            moves = table in archives.MOVED and bool(archived)
            connection.execute(f"DELETE FROM main.{table}")
            connection.execute(
                f"INSERT INTO main.{table} BY NAME FROM before.main.{table} {stays if moves else ''}",
                [archived] if moves else None,
            )
        archives.note(connection, sealed)
    path.unlink()
    return compacted


_OUR_TABLES = """
    SELECT table_name FROM duckdb_tables() WHERE database_name = 'before' AND schema_name = 'main' ORDER BY 1
"""


def _plain(home: Home) -> list[str]:
    """Return the segments whose facts are not compressed yet."""
    return [name for name, is_compressed in forms(home).items() if not is_compressed]


def _count(rows: Rows, report: IngestReport) -> None:
    """Add the counts of a batch to the report."""
    report.segments += len(rows.marks)
    report.damaged_records += rows.damaged
    report.missing_records += rows.missing
    report.unknown_records += rows.unknown
    report.misfit_records += rows.misfits
    report.refused += rows.refused
