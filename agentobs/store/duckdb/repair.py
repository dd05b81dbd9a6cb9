"""Repair: replace damaged files by their readable parts, without deleting the originals.

Torn tails are cut off and damaged ranges are removed. If the published file still has the rows of unreadable facts, or
of a missing segment, the rows are converted back to records with their old numbers; other unreadable facts are replaced
by a line that records the loss. Original files move to `<home>/damaged/`, where nothing is ever deleted. Then the store
is rebuilt from the segments. Segments of running processes are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, ForeignError, HomeError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segment_blocks import blocks_of
from agentobs.recording.journal.segments import (
    FORMAT,
    Damage,
    Line,
    content_path,
    facts_path,
    file_exists,
    is_alive,
    read,
    segment_ids,
    tail,
)
from agentobs.records.facts import TABLES
from agentobs.store.duckdb import generations
from agentobs.store.duckdb.archives import united
from agentobs.store.duckdb.ingest import WAIT_SECONDS, ingest
from agentobs.store.duckdb.journal_tail import Mark
from agentobs.store.duckdb.loader import read_marks
from agentobs.store.duckdb.schema import SETTINGS
from agentobs.store.duckdb.segment_compression import replace
from agentobs.store.duckdb.segment_rewrite import restored, without
from agentobs.store.duckdb.verification import is_store_intact, is_store_readable
from agentobs.store.text_index import NAME as TEXTS
from agentobs.store.text_index import delete_index, index_damage

Known = Mapping[int, tuple[str, bytes]]
"""Kind and JSON of records, by number."""


@dataclass(slots=True)
class RepairReport:
    """The result of a repair."""

    done: list[str] = field(default_factory=list)
    """The changes, one line each."""
    unrepaired: list[str] = field(default_factory=list)
    """The problems that could not be repaired, one line each."""

    def lines(self) -> list[str]:
        """Return the report as lines."""
        return [*self.done, *self.unrepaired] or ["nothing to repair"]


def repair(
    home: Home,
    *,
    wait_seconds: float = WAIT_SECONDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RepairReport:
    """Repair the home as far as possible.

    Args:
        home: the home.
        wait_seconds: how long to wait for another process that is ingesting.
        progress: is called with the number of segments that were checked, and their number.

    Raises:
        HomeError: another process still held the lock at the end of the wait, or the home cannot be written.
        ForeignError: the store file was not written by agentobs.
        DamagedError: the store file is damaged, and there are no segments from which it could be rebuilt.
    """
    report = RepairReport()
    with generations.locked(home, wait_seconds) as held:
        if not held:
            raise HomeError(
                "another process is ingesting", where=str(home.path), todo="Retry in a moment"
            )
        generations.clear_drafts(home)
        with _StoredRows(home) as stored:
            ids = segment_ids(home)
            for number, segment_id in enumerate(ids):
                progress(number, len(ids))
                _repair_segment(home, segment_id, stored, report)
            if home.segments.is_dir():
                for segment_id in sorted(stored.marks.keys() - set(ids)):
                    _restore_segment(home, stored.marks[segment_id], stored, report)
        _move_orphaned_content(home, report)
        if damage := index_damage(home):
            delete_index(home)
            report.done.append(f"{TEXTS}: {damage}; deleted, the next search creates it again")
        if not is_store_readable(home):
            generations.refuse_without_segments(home)
        is_rebuildable = home.database.exists() and bool(segment_ids(home))
        if is_rebuildable and (report.done or not is_store_intact(home)):
            place = generations.move_damaged(home, _place(home, home.database))
            report.done.append(f"{home.database.name}: moved to {place} and rebuilt")
    done = ingest(home)
    report.done += [f"{line}" for line in done.lines()] if done.published else []
    return report


class _StoredRows:
    """The rows of the published file; empty if that file is damaged."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._archived: dict[str, int] = {}
        self.marks: dict[str, Mark] = {}

    def __enter__(self) -> _StoredRows:
        try:
            generation = generations.current(self._home)
            digest = generations.file_digest(self._home.database) if generation else ""
            if generation and generation.digest == digest:
                connection = duckdb.connect(config=SETTINGS)
                generations.attach(connection, self._home)
                self._archived = generations.attach_archives(
                    connection, self._home, generations.listed(connection)
                )
                self.marks = read_marks(connection, "published.main.segments")
                self._connection = connection
        except (DamagedError, duckdb.Error):
            self.marks = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def records(self, segment_id: str) -> Known:
        """Return the stored facts of a segment, as records."""
        found: dict[int, tuple[str, bytes]] = {}
        for table in TABLES.values() if self._connection else ():
            stored = united(table, self._archived, "published.main")
            sql = (
                f"SELECT row.sequence, to_json(row) FROM ({stored}) AS row WHERE row.segment_id = ?"
            )
            assert self._connection is not None
            try:
                rows = self._connection.execute(sql, [segment_id]).fetchall()
            except duckdb.Error:
                continue  # tables may be missing in a damaged store
            found |= {sequence: (table, _record(text)) for sequence, text in rows}
        return found


def _record(text: str) -> bytes:
    """Convert a row (as JSON) to the payload of its record, which does not contain the segment and the sequence."""
    value = json.loads(text)
    del value["segment_id"], value["sequence"]
    return _payload(value)


def _payload(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _repair_segment(home: Home, segment_id: str, stored: _StoredRows, report: RepairReport) -> None:
    facts = facts_path(home, segment_id)
    if facts.exists() and (facts.stat().st_size == 0 or is_alive(facts)):
        return
    mark = stored.marks.get(segment_id)
    for path in (content_path(home, segment_id), facts):
        if not file_exists(path):
            continue
        try:
            last = mark.sequence if mark and path is facts else 0
            if _is_intact(path, last):
                continue
            rows = stored.records(segment_id) if path is facts else {}
            _repair_file(home, path, rows, last, report)
        except ForeignError as error:
            report.unrepaired.append(f"{path.name}: {error.found}")
        except (AgentobsError, OSError) as error:
            report.unrepaired.append(f"{path.name}: {generations.first_line(error)}")


def _restore_segment(home: Home, mark: Mark, stored: _StoredRows, report: RepairReport) -> None:
    """Write the facts of a missing segment from its rows in the published file.

    If the segment was removed by a pruning that is not complete, the next ingest removes it again.
    """
    path = facts_path(home, mark.segment_id)
    rows = stored.records(mark.segment_id)
    if not rows or file_exists(path):
        return
    opened = {"format": FORMAT, "segment_id": mark.segment_id, "opened_ns": mark.opened_ns or 0}
    known = {1: ("segment", _payload(opened)), **rows}
    if mark.state == "sealed":
        known[mark.sequence] = "seal", _payload({"lines": mark.sequence - 1})
    rewritten = restored(mark.segment_id, known, mark.sequence)
    try:
        replace(home, path, blocks_of(rewritten.lines, mark.segment_id))
    except (AgentobsError, OSError) as error:
        report.unrepaired.append(f"{path.name}: {generations.first_line(error)}")
        return
    report.done.append(
        f"{path.name}: it was missing; {len(rows)} records restored from the published file"
    )


def _is_intact(path: Path, last: int) -> bool:
    """Return whether a file is readable up to its end, has no torn tail, and contains at least `last` records."""
    sequence = 0
    for item in read(path):
        if isinstance(item, Damage):
            return False
        assert isinstance(item, Line)
        sequence = item.sequence
    return sequence >= last and tail(path) == 0


def _repair_file(home: Home, path: Path, rows: Known, last: int, report: RepairReport) -> None:
    """Replace a file by its readable part, and keep the original in the directory of damaged files."""
    rewritten = without(path, (), 0, rows, last)
    torn = tail(path)
    places = [_keep(home, each) for each in (path, compressed_path(path)) if each.exists()]
    replace(home, path, blocks_of(rewritten.lines, compression.segment_of(path)))
    changes = [f"{rewritten.kept} records recovered"]
    if rewritten.restored:
        changes.append(f"{rewritten.restored} of them from the published file")
    if rewritten.lost:
        changes.append(f"{rewritten.lost} are lost")
    if torn:
        changes.append(f"an incomplete record of {torn} bytes at the end was removed")
    kept = " and ".join(str(place) for place in places)
    report.done.append(f"{path.name}: {', '.join(changes)}; original: {kept}")


def _move_orphaned_content(home: Home, report: RepairReport) -> None:
    """Move content files without a facts file to the directory of damaged files, because no fact refers to them."""
    # A writer creates the facts file first. The content files are therefore listed before the segments, so that the
    # content of an agent that starts in the meantime is not moved.
    contents = sorted(home.segments.glob("*.content*"))
    known = set(segment_ids(home))
    for path in contents:
        if compression.segment_of(path) not in known and not is_alive(path):
            place = _place(home, path)
            path.rename(place)
            report.done.append(f"{path.name}: its facts are missing; moved to {place}")


def _keep(home: Home, path: Path) -> Path:
    """Link a file into the directory of damaged files, and sync that directory to disk."""
    place = _place(home, path)
    os.link(path, place)
    sync_directory(place.parent)
    return place


def _place(home: Home, path: Path) -> Path:
    folder = home.path / "damaged"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{path.name}.{world.new_id()}"
