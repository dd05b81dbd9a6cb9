"""Rewriting of segments: remove the records of some sessions, or damaged records.

The remaining records keep their sequence numbers. A line replaces each range of removed records: `pruned` with the
sessions and the time, or `lost` with the reason. Therefore the rewritten file passes verification, pruned records do
not count as missing, and losses remain visible.
"""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from agentobs.effects.workspaces.fork_directories import forget_forks
from agentobs.effects.workspaces.kept_states import forget_states
from agentobs.errors import DamagedError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segment_blocks import blocks_of
from agentobs.recording.journal.segments import (
    Damage,
    Line,
    content_path,
    facts_path,
    file_exists,
    line_of,
    read,
)
from agentobs.records.facts import TABLES, Pruning
from agentobs.store.duckdb.archives import united
from agentobs.store.duckdb.journal_tail import Mark, Rows, follow
from agentobs.store.duckdb.loader import save_marks
from agentobs.store.duckdb.segment_compression import replace
from agentobs.store.text_index import forget_texts

FRAME = ("segment", "seal", "pruned", "lost")
"""The kinds of lines that are part of the file format, not recorded data."""

_SESSION = re.compile(rb'"session_id":"([^"\\]{1,128})"')


@dataclass(slots=True)
class Rewritten:
    """The new contents of a file."""

    lines: list[bytes] = field(default_factory=list)
    kept: int = 0
    """Number of records that are kept, including restored records."""
    pruned: int = 0
    """Number of records that are removed."""
    lost: int = 0
    """Number of unreadable records that are lost."""
    restored: int = 0
    """Number of unreadable records that were restored from another source."""


def without(
    path: Path,
    sessions: Collection[str],
    pruned_ns: int,
    known: Mapping[int, tuple[str, bytes]] | None = None,
    last: int = 0,
) -> Rewritten:
    """Return the contents of a file without the records of some sessions, and without damaged records.

    Args:
        path: the path of the plain file.
        sessions: the sessions whose records are removed.
        pruned_ns: the time in the lines that replace the removed records.
        known: kind and JSON of records by number; they replace unreadable records.
        last: the number of the last record, if it is known to be higher than the last number in the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ForeignError: the file has a newer format.
    """
    result = Rewritten()
    seed = zlib.crc32(compression.segment_of(path).encode())
    removed = _RemovedRun(seed)
    sequence = 0
    for item in read(path):
        if isinstance(item, Damage):
            if item.missing:
                result.lines += removed.replacement()
                _lose(result, seed, sequence + 1, sequence + item.missing, known or {})
                sequence += item.missing
            continue
        if item.sequence <= sequence:
            continue  # a duplicate
        sequence = item.sequence
        session_id = session_of(item) if item.kind not in FRAME else None
        if session_id is not None and session_id in sessions:
            result.pruned += 1
            removed.add(item, {session_id}, pruned_ns)
        elif item.kind == "pruned":
            removed.add(item, _sessions(item), _pruned_ns(item))
        else:
            result.lines += removed.replacement()
            result.lines.append(line_of(seed, item.sequence, item.kind, item.payload))
            result.kept += item.kind not in FRAME
    result.lines += removed.replacement()
    if sequence < last:
        _lose(result, seed, sequence + 1, last, known or {})
    return result


def restored(segment_id: str, known: Mapping[int, tuple[str, bytes]], last: int) -> Rewritten:
    """Return the contents of a missing file with the records 1 to `last`. Only the records in `known` still exist."""
    result = Rewritten()
    _lose(result, zlib.crc32(segment_id.encode()), 1, last, known)
    return result


def _lose(
    result: Rewritten, seed: int, first: int, last: int, known: Mapping[int, tuple[str, bytes]]
) -> None:
    """Add the known records of an unreadable range, and lines that record the loss of the other records."""
    at = first
    for number in [*sorted(each for each in known if first <= each <= last), last + 1]:
        if at < number:
            value = {"from": at, "reason": "could not be read back"}
            result.lines.append(line_of(seed, number - 1, "lost", value))
            result.lost += number - at
        if number <= last:
            result.lines.append(line_of(seed, number, *known[number]))
            result.restored += 1
            result.kept += 1
        at = number + 1


def prune_segment(
    home: Home, segment_id: str, sessions: Collection[str], everything: Collection[str], now_ns: int
) -> int:
    """Remove the content of `sessions` from a segment, and all records of `everything`; return the number of removed
    records.

    A facts file that has no records left is deleted, together with its content file. Repeating the call changes
    nothing.

    Raises:
        OSError: a file could not be written; each file is either unchanged or complete.
        DamagedError: a new file cannot be read back; the original file is unchanged.
    """
    facts, content = facts_path(home, segment_id), content_path(home, segment_id)
    pruned = 0
    if file_exists(content) and _may_hold(content, sessions):
        pruned += _put(home, content, without(content, sessions, now_ns), keep_empty=True)
    if everything and file_exists(facts) and _may_hold(facts, everything):
        rewritten = without(facts, everything, now_ns)
        if rewritten.pruned and not rewritten.kept:
            remove(content)
        pruned += _put(home, facts, rewritten, keep_empty=False)
    return pruned


@dataclass(frozen=True, slots=True)
class Pruned:
    """The data that prunings removed."""

    rows: int
    """Number of deleted rows of the published file."""
    sessions: tuple[tuple[str, str], ...]
    """Pairs of a segment and a session that was deleted completely from it. Archives may still have their rows."""


def apply_prunings(
    connection: duckdb.DuckDBPyConnection,
    home: Home,
    marks: dict[str, Mark],
    read: Collection[str],
    archived: Collection[str] = (),
) -> Pruned | None:
    """Apply prunings to segments, rows and marks; return what was removed, None if there was nothing to do.

    The function applies the prunings that the newly read segments contain, and earlier prunings of sessions that have
    records in those segments. Only data recorded before the pruning is removed. A segment that started later is not
    changed, for example the segment of a log that was imported again. An open segment keeps its rows until it has
    ended; sessions that are known to have an open segment are not pruned.

    Args:
        connection: the connection to the draft.
        home: the home of the segments.
        marks: the marks of all segments; the marks of changed segments are replaced.
        read: the IDs of the newly read segments.
        archived: the names under which archives are attached. They are searched for the segments of a session, but
            not changed.

    Raises:
        OSError, DamagedError: as for `prune_segment`.
    """
    if not connection.execute("SELECT 1 FROM prunings LIMIT 1").fetchall():
        return None
    ended = [name for name in read if name in marks and marks[name].state != "open"]
    found = connection.execute(_NEW_PRUNINGS, {"read": list(read), "ended": ended}).fetchall()
    if not found:
        return None
    all_ns = {session_id: at_ns for session_id, at_ns, _ in found}
    pruned_ns = {session_id: at_ns for session_id, _, at_ns in found}
    held = connection.execute(_holding(archived), {"sessions": list(pruned_ns)}).fetchall()
    now_ns, rows = max(pruned_ns.values()), list[tuple[str, str]]()
    for (segment_id,) in held:
        mark = marks.get(segment_id)
        if mark is None or mark.state == "open":
            continue
        opened_ns = mark.opened_ns or 0
        sessions = {each for each in pruned_ns if opened_ns <= pruned_ns[each]}
        everything = {each for each in pruned_ns if opened_ns <= all_ns[each]}
        if sessions:
            prune_segment(home, segment_id, sessions, everything, now_ns)
            _renew_mark(connection, home, segment_id, marks)
            rows += [(segment_id, each) for each in everything]
    forget_texts(home, pruned_ns)
    forget_states(home, pruned_ns)
    forget_forks(home, pruned_ns)
    for session_id in pruned_ns:
        if _PLAIN_ID.fullmatch(session_id):
            shutil.rmtree(home.path / "sessions" / session_id, ignore_errors=True)
    return Pruned(_delete_rows(connection, rows, archived), tuple(rows))


def _renew_mark(
    connection: duckdb.DuckDBPyConnection, home: Home, segment_id: str, marks: dict[str, Mark]
) -> None:
    """Replace the mark of a segment, as if its current file had been read for the first time."""
    del marks[segment_id]
    connection.execute("DELETE FROM segments WHERE segment_id = ?", [segment_id])
    rows = Rows()
    follow(home, Mark(segment_id), rows)
    save_marks(connection, rows.marks)
    marks |= rows.marks


def _delete_rows(
    connection: duckdb.DuckDBPyConnection,
    pairs: Collection[tuple[str, str]],
    archived: Collection[str],
) -> int:
    """Delete the rows of some sessions in some segments, given as pairs; return the number of deleted rows."""
    parameters = {"segments": [each for each, _ in pairs], "sessions": [each for _, each in pairs]}
    deleted = 0
    for table in _PRUNABLE_TABLES:
        row = connection.execute(
            f"DELETE FROM {table} WHERE (segment_id, session_id) IN "
            "(SELECT unnest($segments), unnest($sessions))",
            parameters,
        ).fetchone()
        deleted += row[0] if row else 0
    # A store that is rebuilt from the segments has only the prices that are still used.
    connection.execute(
        f"DELETE FROM prices WHERE NOT EXISTS (SELECT 1 FROM ({united('usage', archived)}) AS usage {_USES})",
        parameters,
    )
    return deleted


def _holding(archived: Collection[str]) -> str:
    """Return the SQL for the segments that contain records of sessions."""
    rows = " UNION ALL ".join(
        f"SELECT segment_id, session_id FROM ({united(table, archived)})"
        for table in _PRUNABLE_TABLES
    )
    return (
        f"SELECT DISTINCT segment_id FROM ({rows}) "
        "WHERE session_id IN (SELECT unnest($sessions)) ORDER BY segment_id"
    )


_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PRUNABLE_TABLES = [table for table in TABLES.values() if table != TABLES[Pruning]]
_HELD = " UNION ALL ".join(
    f"SELECT segment_id, session_id FROM {table}" for table in _PRUNABLE_TABLES
)
_NEW_PRUNINGS = f"""
    SELECT session_id, coalesce(max(pruned_ns) FILTER (scope = 'all'), -1), max(pruned_ns) FROM prunings
    WHERE session_id IS NOT NULL AND (
        segment_id IN (SELECT unnest($read))
        OR session_id IN (SELECT session_id FROM ({_HELD}) WHERE segment_id IN (SELECT unnest($ended)))
    )
    GROUP BY session_id ORDER BY session_id
"""
_USES = """
    WHERE usage.billed AND usage.model = prices.model
        AND usage.service_tier IS NOT DISTINCT FROM prices.service_tier
        AND usage.inference_geo IS NOT DISTINCT FROM prices.inference_geo
        AND usage.speed IS NOT DISTINCT FROM prices.speed
        AND (usage.segment_id, usage.session_id) NOT IN (SELECT unnest($segments), unnest($sessions))
"""


def remove(path: Path) -> None:
    """Delete the plain and the compressed form of a segment file."""
    path.unlink(missing_ok=True)
    compressed_path(path).unlink(missing_ok=True)


def session_of(line: Line) -> str | None:
    """Return the session that a record belongs to, or None."""
    found = _SESSION.search(line.payload)
    return found[1].decode("utf-8", "replace") if found else None


@dataclass(slots=True)
class _RemovedRun:
    """A range of consecutive records that are removed."""

    seed: int
    first: int = 0
    last: int = 0
    sessions: set[str] = field(default_factory=set)
    pruned_ns: int = 0

    def add(self, line: Line, sessions: set[str], pruned_ns: int) -> None:
        self.first, self.last = self.first or line.first, line.sequence
        self.sessions |= sessions
        self.pruned_ns = max(self.pruned_ns, pruned_ns)

    def replacement(self) -> Iterator[bytes]:
        """Yield the line that replaces the range, unless it is empty, and start a new range."""
        if self.last:
            value = {
                "from": self.first,
                "sessions": sorted(self.sessions),
                "pruned_ns": self.pruned_ns,
            }
            yield line_of(self.seed, self.last, "pruned", value)
        self.first = self.last = self.pruned_ns = 0
        self.sessions = set()


def _put(home: Home, path: Path, rewritten: Rewritten, *, keep_empty: bool) -> int:
    if not rewritten.pruned:
        return 0
    if rewritten.kept or keep_empty:
        replace(home, path, blocks_of(rewritten.lines, compression.segment_of(path)))
    else:
        remove(path)
    return rewritten.pruned


def _may_hold(path: Path, sessions: Collection[str]) -> bool:
    """Return False if the index of a compressed file shows that it has no records of these sessions, else True."""
    try:
        file, index = compression.read_index(compressed_path(path))
    except (FileNotFoundError, DamagedError):
        return True
    file.close()
    return not index.sessions().isdisjoint(sessions)


def _sessions(line: Line) -> set[str]:
    try:
        return {str(each) for each in line.value()["sessions"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()


def _pruned_ns(line: Line) -> int:
    try:
        found = line.value()["pruned_ns"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return found if isinstance(found, int) else 0
