"""Repair: damaged files are replaced by their readable parts, and nothing is destroyed.

Torn tails are cut off and damaged ranges removed. If the published file still has the rows of unreadable facts, these
become records again, with their old numbers; a line that records the loss replaces the others. Replaced files move to
`<home>/damaged/`, where nothing is ever deleted. Then the store is rebuilt from the segments. Segments of running
processes are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, ForeignError, HomeError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home, sync_directory
from agentobs.recording.journal.segments import (
    Damage,
    Line,
    content_path,
    facts_path,
    is_alive,
    is_there,
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
from agentobs.store.duckdb.segment_compression import pieces_of, replace
from agentobs.store.duckdb.segment_rewrite import without
from agentobs.store.duckdb.verification import holds_what_it_should

Known = Mapping[int, tuple[str, bytes]]
"""Kind and JSON of records, by number."""


@dataclass(slots=True)
class RepairReport:
    """What a repair did."""

    done: list[str] = field(default_factory=list)
    """The changes, one sentence each."""
    left: list[str] = field(default_factory=list)
    """The problems that could not be repaired, one sentence each."""

    def lines(self) -> list[str]:
        """Return the report as lines."""
        return [*self.done, *self.left] or ["nothing to repair"]


def repair(home: Home, *, wait_seconds: float = WAIT_SECONDS) -> RepairReport:
    """Repair the home as far as possible.

    Raises:
        HomeError: another process holds the lock all the time, or the home cannot be written.
        ForeignError: the store file is not ours.
    """
    report = RepairReport()
    with generations.locked(home, wait_seconds) as held:
        if not held:
            raise HomeError(
                "another process is ingesting", where=str(home.path), todo="Try again in a moment"
            )
        generations.clear_drafts(home)
        with _Known(home) as known:
            for segment_id in segment_ids(home):
                _mend_segment(home, segment_id, known, report)
        _move_lonely(home, report)
        if home.database.exists() and (report.done or not holds_what_it_should(home)):
            place = generations.set_aside(home, _place(home, home.database))
            report.done.append(f"{home.database.name}: moved to {place} and rebuilt")
    done = ingest(home)
    report.done += [f"{line}" for line in done.lines()] if done.published else []
    return report


class _Known:
    """The rows of the published file if it is intact; otherwise nothing is known."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._archived: dict[str, int] = {}
        self.marks: dict[str, Mark] = {}

    def __enter__(self) -> _Known:
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
        """Return the facts of a segment that are rows."""
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
                continue  # a damaged store may lack tables
            found |= {sequence: (table, _as_written(text)) for sequence, text in rows}
        return found


def _as_written(text: str) -> bytes:
    """Return a row as its record: without segment and sequence."""
    value = json.loads(text)
    del value["segment_id"], value["sequence"]
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _mend_segment(home: Home, segment_id: str, known: _Known, report: RepairReport) -> None:
    facts = facts_path(home, segment_id)
    if facts.exists() and (facts.stat().st_size == 0 or is_alive(facts)):
        return
    mark = known.marks.get(segment_id)
    for path in (content_path(home, segment_id), facts):
        if not is_there(path):
            continue
        try:
            last = mark.sequence if mark and path is facts else 0
            if _is_whole(path, last):
                continue
            rows = known.records(segment_id) if path is facts else {}
            _mend(home, path, rows, last, report)
        except ForeignError as error:
            report.left.append(f"{path.name}: {error.found}")
        except (AgentobsError, OSError) as error:
            report.left.append(f"{path.name}: {generations.first_line(error)}")


def _is_whole(path: Path, last: int) -> bool:
    """Return whether a file is readable to its end, without a torn tail."""
    sequence = 0
    for item in read(path):
        if isinstance(item, Damage):
            return False
        assert isinstance(item, Line)
        sequence = item.sequence
    return sequence >= last and tail(path) == 0


def _mend(home: Home, path: Path, rows: Known, last: int, report: RepairReport) -> None:
    """Replace a file by its readable part, and move the file itself aside."""
    left = without(path, (), 0, rows, last)
    torn = tail(path)
    places = [_keep(home, each) for each in (path, compressed_path(path)) if each.exists()]
    replace(home, path, pieces_of(left.lines, compression.segment_of(path)))
    told = [f"{left.kept} records recovered"]
    told += [f"{left.restored} of them from the published file"] if left.restored else []
    told += [f"{left.lost} are lost"] if left.lost else []
    told += [f"an incomplete end of {torn} bytes was removed"] if torn else []
    kept = " and ".join(str(place) for place in places)
    report.done.append(f"{path.name}: {', '.join(told)}; original: {kept}")


def _move_lonely(home: Home, report: RepairReport) -> None:
    """Move content aside whose facts are gone, because nothing refers to it."""
    known = set(segment_ids(home))
    for path in sorted(home.segments.glob("*.content*")):
        if compression.segment_of(path) not in known:
            place = _place(home, path)
            path.rename(place)
            report.done.append(f"{path.name}: its facts are missing; moved to {place}")


def _keep(home: Home, path: Path) -> Path:
    """Link a file into the directory of damaged files, durably."""
    place = _place(home, path)
    os.link(path, place)
    sync_directory(place.parent)
    return place


def _place(home: Home, path: Path) -> Path:
    folder = home.path / "damaged"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{path.name}.{world.new_id()}"
