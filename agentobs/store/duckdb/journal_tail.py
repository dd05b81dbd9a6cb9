"""The tail: the records after the watermarks of their segments, as rows that DuckDB can load.

Both the ingest and the live view use this module. The watermark of a segment, also called its mark, is a row of the
table `segments`. The journal's reader checks every line.
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
from agentobs.recording.journal.unfinished_attempts import ATTEMPT_KINDS, DRAFTS, crashed_attempts
from agentobs.records.facts import TABLES
from agentobs.records.labels import is_label

State = Literal["open", "sealed", "dead"]

BATCH_BYTES = 32 * 1024 * 1024
"""The size in bytes from which a batch is loaded; this bounds the memory of an ingest."""

_KINDS = frozenset(TABLES.values())
_RUN_KINDS = frozenset(kind.encode() for kind in _KINDS)
_ATTEMPT_KINDS = frozenset(kind.encode() for kind in ATTEMPT_KINDS)
_MAX_LINE_BYTES = 1024 * 1024
"""The maximum size of a line. A fact has a few hundred bytes, so agentobs did not write a longer line."""
_MAX_SEQUENCE = 2**62
"""The limit for sequence numbers. agentobs does not write higher numbers, and they might not fit the column."""


@dataclass(slots=True)
class Mark:
    """The position up to which a segment was read, and the findings so far; a row of the table `segments`."""

    segment_id: str
    facts_offset: int = 0
    sequence: int = 0
    state: State = "open"
    damaged_records: int = 0
    missing_records: int = 0
    opened_ns: int | None = None


@dataclass(slots=True)
class Rows:
    """A batch of records to be loaded, and the marks after loading them."""

    tables: dict[str, list[bytes]] = field(default_factory=dict)
    """One JSON object per record, by table."""
    marks: dict[str, Mark] = field(default_factory=dict)
    """The segments with new records or a new state."""
    size: int = 0
    """Number of bytes in `tables`."""
    damaged: int = 0
    """Number of damaged ranges."""
    missing: int = 0
    """Number of missing sequence numbers."""
    unknown: int = 0
    """Number of records of a kind that this version does not know."""
    misfits: int = 0
    """Number of readable records that are not valid facts."""
    refused: list[Path] = field(default_factory=list)
    """Segments of a newer format, which were skipped."""


def unread(home: Home, marks: Mapping[str, Mark]) -> list[Mark]:
    """Return the marks of the segments that may have new records, oldest first.

    A segment that has ended and was read to its end costs one `stat`, or nothing if it is compressed. Empty files are
    skipped: their process has not locked them yet, and checking whether the process is alive could prevent it from
    locking the file.
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
    """Return the number of bytes of facts that have not been read; compressed segments have been read.

    Args:
        home: the home of the segments.
        read: the number of bytes that have been read, by segment.
    """
    plain = (name for name, is_compressed in forms(home).items() if not is_compressed)
    return sum(max(0, _size(facts_path(home, name)) - read.get(name, 0)) for name in plain)


def batches(home: Home, marks: Mapping[str, Mark]) -> Iterator[Rows]:
    """Yield all new records in batches of about `BATCH_BYTES`; a batch ends at the end of a segment."""
    rows = Rows()
    for mark in unread(home, marks):
        follow(home, mark, rows)
        if rows.size >= BATCH_BYTES:
            yield rows
            rows = Rows()
    yield rows


def follow(home: Home, before: Mark, rows: Rows) -> None:
    """Read one segment from its mark on, and add its records and its new mark to `rows`."""
    path = facts_path(home, before.segment_id)
    mark = dataclasses.replace(before)
    # Check this before reading: if the process has ended, all that it wrote is then read below.
    alive = is_alive(path)
    attempts: list[Line] = []
    run_kinds = set(_RUN_KINDS)
    try:
        for item in read_runs(path, mark.facts_offset, mark.sequence, run_kinds):
            if isinstance(item, Run):
                _add_run(item, mark, rows)
            elif isinstance(item, Line):
                _add_line(item, mark, rows)
                if item.kind in ATTEMPT_KINDS:
                    attempts.append(item)
                    # After the first draft, read attempts one by one, to find out which drafts were completed.
                    run_kinds -= _ATTEMPT_KINDS
            elif 0 < item.missing < _MAX_SEQUENCE:
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
        for line in crashed_attempts(read(path) if before.sequence else attempts):
            _add_fact(mark.segment_id, line, rows)
    if mark != before:
        rows.marks[mark.segment_id] = mark
        rows.damaged += mark.damaged_records - before.damaged_records
        rows.missing += mark.missing_records - before.missing_records


def _add_run(run: Run, mark: Mark, rows: Rows) -> None:
    """Add many facts at once; for each fact, the effect is the same as that of `_add_line`."""
    start = b'{"segment_id":"%s","sequence":' % mark.segment_id.encode()
    tables: dict[bytes, list[bytes]] = {}
    for kind in set(run.kinds):
        tables[kind] = rows.tables.setdefault(kind.decode(), [])
    for sequence, (kind, payload) in enumerate(
        zip(run.kinds, run.payloads, strict=True), run.first
    ):
        if payload.isascii() and payload[:2] == b'{"' and len(payload) <= _MAX_LINE_BYTES:
            tables[kind].append(b"%b%d,%b" % (start, sequence, payload[1:]))
        else:
            _add_fact(mark.segment_id, Line(sequence, kind.decode(), payload, 0, 0), rows)
    rows.size += run.end - mark.facts_offset
    mark.sequence = run.first + len(run.kinds) - 1


def _add_line(line: Line, mark: Mark, rows: Rows) -> None:
    """Process one line. The record of a fact becomes a row; other kinds of lines update the mark."""
    sequence, kind = line.sequence, line.kind
    if not mark.sequence < sequence < _MAX_SEQUENCE:
        mark.damaged_records += 1  # skip duplicate records
        return
    mark.sequence = sequence
    if kind in _KINDS:
        _add_fact(mark.segment_id, line, rows)
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


def _add_fact(segment_id: str, line: Line, rows: Rows) -> None:
    payload = line.payload
    if not payload.startswith(b'{"') or len(payload) > _MAX_LINE_BYTES:
        rows.misfits += 1
        return
    if not payload.isascii():
        # Replace lone surrogates, which may occur in tags, because DuckDB does not accept them.
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
