"""The tail: the records of segments beyond their watermarks, as rows that DuckDB can load.

Ingest and the live view share this code. A watermark is one row of the table `segments`. The journal's reader checks
every line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentobs.errors import ForeignError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    Line,
    Run,
    facts_path,
    forms,
    is_alive,
    read,
    read_runs,
)
from agentobs.recording.journal.unfinished_attempts import DRAFTS, TELLING, crashed
from agentobs.records.facts import TABLES
from agentobs.records.labels import is_label

State = Literal["open", "sealed", "dead"]

BATCH_BYTES = 32 * 1024 * 1024
"""How many bytes are read before they are loaded; this bounds the memory of an ingest."""

_KINDS = frozenset(TABLES.values())
_QUICK = frozenset(kind.encode() for kind in _KINDS)
_TELLING = frozenset(kind.encode() for kind in TELLING)
_LONGEST = 1024 * 1024
"""A fact is a few hundred bytes; a line above this size was not written by agentobs."""
_FAR = 2**62
"""A sequence number above this was not written by agentobs, and would not fit its column."""


@dataclass(slots=True)
class Mark:
    """How far a segment was read, and the findings up to there: one row of the table `segments`."""

    segment_id: str
    facts_offset: int = 0
    sequence: int = 0
    state: State = "open"
    damaged_records: int = 0
    missing_records: int = 0
    opened_ns: int | None = None


@dataclass(slots=True)
class Rows:
    """Records that wait to be loaded, and the marks that are valid afterwards."""

    tables: dict[str, list[bytes]] = field(default_factory=dict)
    """One JSON object per record, by table."""
    marks: dict[str, Mark] = field(default_factory=dict)
    """The segments with new records or a new state."""
    size: int = 0
    """Bytes in `tables`."""
    damaged: int = 0
    """Damaged ranges."""
    missing: int = 0
    """Missing sequence numbers."""
    unknown: int = 0
    """Records of a kind that this version does not know."""
    misfits: int = 0
    """Readable records that are not valid facts."""
    refused: list[Path] = field(default_factory=list)
    """Segments of a newer format, which were skipped."""


def unread(home: Home, marks: Mapping[str, Mark]) -> list[Mark]:
    """Return the marks of the segments that may have new records, oldest first.

    A segment that has ended and was read to its end costs one `stat`, and nothing once it is compressed. An empty file
    is
    skipped: its process has not locked it yet, and checking whether the process is alive could interfere with that.
    """
    found = []
    for segment_id, is_compressed in forms(home).items():
        if not is_label(segment_id):
            continue
        mark = marks.get(segment_id) or Mark(segment_id)
        size = None if is_compressed else _size(facts_path(home, segment_id))
        may_be_new = mark.state == "open" or (size is not None and size > mark.facts_offset)
        if may_be_new and size != 0:
            found.append(mark)
    return found


def has_records(home: Home) -> bool:
    """Return whether anything was recorded."""
    found = forms(home)
    return any(found.values()) or any(_size(facts_path(home, name)) for name in found)


def new_bytes(home: Home, read: Mapping[str, int]) -> int:
    """Return how many bytes of facts have not been read, by segment; compressed segments have been read."""
    plain = (name for name, is_compressed in forms(home).items() if not is_compressed)
    return sum(max(0, _size(facts_path(home, name)) - read.get(name, 0)) for name in plain)


def batches(home: Home, marks: Mapping[str, Mark]) -> Iterator[Rows]:
    """Read all new records in bounded batches; a batch ends at the end of a segment."""
    rows = Rows()
    for mark in unread(home, marks):
        follow(home, mark, rows)
        if rows.size >= BATCH_BYTES:
            yield rows
            rows = Rows()
    yield rows


def follow(home: Home, before: Mark, rows: Rows) -> None:
    """Read one segment from its mark on, into `rows`."""
    path = facts_path(home, before.segment_id)
    mark = dataclasses.replace(before)
    # This check comes first: everything that a process wrote before it ended can then be read below.
    alive = is_alive(path)
    told: list[Line] = []
    quick = set(_QUICK)
    try:
        for item in read_runs(path, mark.facts_offset, mark.sequence, quick):
            if isinstance(item, Run):
                _take_run(item, mark, rows)
            elif isinstance(item, Line):
                _take(item, mark, rows)
                if item.kind in TELLING:
                    told.append(item)
                    quick -= _TELLING  # from the first draft on it matters which attempts ended
            elif 0 < item.missing < _FAR:
                mark.missing_records += item.missing
            elif item.end > item.start:
                mark.damaged_records += 1
            mark.facts_offset = max(mark.facts_offset, item.end)
    except ForeignError:
        rows.refused.append(path)
        return
    except FileNotFoundError:
        return
    if mark.state != "sealed":
        mark.state = "open" if alive else "dead"
    if before.state == "open" and mark.state != "open":
        for line in crashed(read(path) if before.sequence else told):
            _take_fact(mark.segment_id, line, rows)
    if mark != before:
        rows.marks[mark.segment_id] = mark
        rows.damaged += mark.damaged_records - before.damaged_records
        rows.missing += mark.missing_records - before.missing_records


def _take_run(run: Run, mark: Mark, rows: Rows) -> None:
    """Add many facts, as `_take` adds one."""
    head = b'{"segment_id":"%s","sequence":' % mark.segment_id.encode()
    tables: dict[bytes, list[bytes]] = {}
    for kind in set(run.kinds):
        tables[kind] = rows.tables.setdefault(kind.decode(), [])
    for sequence, (kind, payload) in enumerate(
        zip(run.kinds, run.payloads, strict=True), run.first
    ):
        if payload.isascii() and payload[:2] == b'{"' and len(payload) <= _LONGEST:
            tables[kind].append(b"%b%d,%b" % (head, sequence, payload[1:]))
        else:
            _take_fact(mark.segment_id, Line(sequence, kind.decode(), payload, 0, 0), rows)
    rows.size += run.end - mark.facts_offset
    mark.sequence = run.first + len(run.kinds) - 1


def _take(line: Line, mark: Mark, rows: Rows) -> None:
    """Add one line: the record of a fact becomes a row with its segment and sequence."""
    sequence, kind = line.sequence, line.kind
    if not mark.sequence < sequence < _FAR:
        mark.damaged_records += 1  # a duplicate record counts once
        return
    mark.sequence = sequence
    if kind in _KINDS:
        _take_fact(mark.segment_id, line, rows)
    elif kind == "segment":
        mark.opened_ns = _opened_ns(line)
    elif kind == "seal":
        mark.state = "sealed"
    elif kind == "lost":
        mark.missing_records += sequence - line.first + 1
    elif kind == "pruned" or kind in DRAFTS:
        pass
    else:
        rows.unknown += 1


def _take_fact(segment_id: str, line: Line, rows: Rows) -> None:
    payload = line.payload
    if not payload.startswith(b'{"') or len(payload) > _LONGEST:
        rows.misfits += 1
        return
    if not payload.isascii():
        # DuckDB does not read lone surrogates; they are replaced in tags.
        payload = payload.decode("utf-8", "replace").encode()
    row = b'{"segment_id":"%s","sequence":%d,%s' % (segment_id.encode(), line.sequence, payload[1:])
    rows.tables.setdefault(line.kind, []).append(row)
    rows.size += len(row)


def _opened_ns(line: Line) -> int | None:
    try:
        opened = line.value().get("opened_ns")
    except (ValueError, AttributeError, RecursionError):
        return None
    return opened if isinstance(opened, int) and abs(opened) < 2**63 else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
