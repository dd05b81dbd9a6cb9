"""Pruning: permanently delete sessions, or only their content, by age, by size or by ID.

First a record of the pruning is written to a separate segment. From then on the pruning is final. The next ingest
removes the records from the segments and the rows from the published file, and rewrites that file, so that none of its
blocks contains deleted data. This ingest may run in another process if this process is killed. A store that is rebuilt
from the segments reads the same record, so it has the same data. Open segments are never changed: a session with an
open segment is skipped, and if a pruned session nevertheless gets records in an open segment, they are deleted when the
segment has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.effects.workspaces.state_sizes import deleted_bytes
from agentobs.errors import DamagedError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment, content_path, facts_path
from agentobs.records.facts import TABLES, Pruning, columns
from agentobs.store.disk_usage import home_bytes, size_text
from agentobs.store.duckdb.connection import connected
from agentobs.store.duckdb.ingest import ingest

Scope = Literal["content", "all"]

ROUNDS = 4
"""The maximum number of rounds to reach a size. Several are needed because the sizes of sessions are estimates."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A session to be pruned."""

    session_id: str
    name: str | None
    last_ns: int
    """The time of its last record, nanoseconds since 1970."""
    bytes: int
    """The estimated size of its records, or of its content if only the content is deleted, with the recorded files that
    are deleted with it.
    """
    opened_ns: int = 0
    """The time at which its newest segment was opened, nanoseconds since 1970."""


@dataclass(slots=True)
class PruneReport:
    """The result of a prune or of its dry run."""

    what: Scope
    chosen: list[Chosen] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    """Matching sessions that were skipped because they have an open segment."""
    before: int = 0
    """The size of the home before, in bytes."""
    after: int | None = None
    """The size of the home afterwards, in bytes; None if nothing was done."""
    is_pending: bool = False
    """Whether another process was ingesting; in that case, the next ingest deletes the data."""

    def lines(self) -> list[str]:
        """Return the report as lines."""
        noun = "sessions" if self.what == "all" else "sessions: content only"
        estimate = sum(each.bytes for each in self.chosen)
        selection = f"{len(self.chosen)} {noun}, about {size_text(estimate)}"
        lines = [f"would prune {selection}" if self.after is None else f"pruned {selection}"]
        lines += [f"{each}: still running, skipped" for each in self.running]
        if self.after is not None:
            lines.append(
                f"home size: {size_text(self.before)} before, {size_text(self.after)} after"
            )
        if self.is_pending:
            lines.append(
                "another process is ingesting; the next ingest deletes the selected sessions"
            )
        return lines


def prune(
    home: Home,
    *,
    sessions: Sequence[str] = (),
    before_ns: int | None = None,
    keep_bytes: int | None = None,
    what: Scope = "all",
    dry_run: bool = False,
) -> PruneReport:
    """Delete sessions, or only their content.

    Args:
        home: the home of the sessions.
        sessions: delete only these sessions, given by their full IDs; empty for no restriction.
        before_ns: delete only sessions without a record since this time.
        keep_bytes: delete only the oldest sessions, until the home is no larger than this.
        what: `all`, or `content` to keep the facts, such as costs and errors.
        dry_run: only report which sessions would be deleted.

    Raises:
        HomeError, ForeignError: as for an ingest.
        OSError: the home cannot be written.
    """
    report = PruneReport(what, before=home_bytes(home))
    for _ in range(ROUNDS if keep_bytes is not None else 1):
        chosen, running = _choose(home, sessions, before_ns, keep_bytes, what)
        report.running = running
        report.chosen += chosen
        if dry_run or not chosen:
            break
        _decide(home, chosen, what)
        report.is_pending = ingest(home).busy
        report.after = home_bytes(home)
        if report.is_pending:
            break
    return report


def _decide(home: Home, chosen: Sequence[Chosen], what: Scope) -> None:
    """Write the record of a pruning; from then on the sessions count as pruned."""
    segment = Segment(home)
    now = world.now()
    for each in chosen:
        # A segment that was opened later keeps its records. The clock may have been set back since it was opened.
        fact = Pruning(each.session_id, max(now, each.opened_ns), what)
        segment.facts.append(TABLES[Pruning], columns(fact))
    segment.close()


def _choose(
    home: Home,
    selected: Sequence[str],
    before_ns: int | None,
    keep_bytes: int | None,
    what: Scope,
) -> tuple[list[Chosen], list[str]]:
    """Return the sessions to prune, oldest first, and those that are skipped because of an open segment."""
    with connected(home, ingest=False) as connection:
        rows = connection.execute(_SESSIONS, {"what": what}).fetchall()
        places = connection.execute(_PLACES).fetchall()
    sizes = _sizes(home, places, what)
    found = [
        (Chosen(i, name, last or 0, sizes.get(i, 0), opened or 0), is_open)
        for i, name, last, is_open, opened in rows
    ]
    if selected:
        found = [each for each in found if each[0].session_id in set(selected)]
    if before_ns is not None:
        found = [each for each in found if each[0].last_ns < before_ns]
    chosen = _with_files(home, [each for each, is_open in found if not is_open])
    running = [each.session_id for each, is_open in found if is_open]
    if keep_bytes is not None:
        chosen = _first_sessions(chosen, home_bytes(home) - keep_bytes)
        running = []
    return chosen, running


def _with_files(home: Home, sessions: Sequence[Chosen]) -> list[Chosen]:
    """Return sessions with the recorded files that are deleted with them, if they are deleted in this order."""
    files = deleted_bytes(home, [each.session_id for each in sessions])
    return [replace(each, bytes=each.bytes + files.get(each.session_id, 0)) for each in sessions]


def _first_sessions(sessions: Sequence[Chosen], excess_bytes: int) -> list[Chosen]:
    """Return as many of the first sessions as are needed to reduce the size by `excess_bytes`."""
    chosen: list[Chosen] = []
    for each in sessions:
        if excess_bytes <= 0:
            break
        chosen.append(each)
        excess_bytes -= each.bytes
    return chosen


def _sizes(home: Home, places: Sequence[tuple[str, str]], what: Scope) -> dict[str, int]:
    """Return the estimated bytes of each session. The size of a block, or of an uncompressed file, is divided equally
    among its sessions.

    Args:
        home: the home of the sessions.
        places: pairs of a segment and a session that has records in it.
        what: `all`, or `content` for the size of the content only.
    """
    sizes: dict[str, float] = {}
    by_segment: dict[str, list[str]] = {}
    for segment_id, session_id in places:
        by_segment.setdefault(segment_id, []).append(session_id)
    for segment_id, session_ids in by_segment.items():
        paths = [content_path(home, segment_id)]
        if what == "all":
            paths.append(facts_path(home, segment_id))
        for path in paths:
            for size, sharing in _shares(path, session_ids):
                for session_id in sharing:
                    sizes[session_id] = sizes.get(session_id, 0) + size / len(sharing)
    return {session_id: round(size) for session_id, size in sizes.items()}


def _shares(path: Path, session_ids: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
    try:
        file, index = compression.read_index(compressed_path(path))
    except (FileNotFoundError, DamagedError):
        return [(path.stat().st_size, session_ids)] if path.exists() else []
    file.close()
    return [(b.compressed_bytes, b.summary.sessions) for b in index.blocks if b.summary.sessions]


_PRUNABLE_TABLES = [table for table in TABLES.values() if table != TABLES[Pruning]]
_PLACES = " UNION ".join(
    f"SELECT segment_id, session_id FROM {table}" for table in _PRUNABLE_TABLES
)
_SESSIONS = f"""
    WITH places AS ({_PLACES}), seen AS (
        SELECT session_id, max(at_ns) AS last_ns FROM (
            SELECT session_id, started_ns AS at_ns FROM session_starts
            UNION ALL SELECT session_id, ended_ns FROM session_ends
            UNION ALL SELECT session_id, started_ns + duration_ns FROM attempts
            UNION ALL SELECT session_id, result_ns FROM tool_results
            UNION ALL SELECT session_id, at_ns FROM events
            UNION ALL SELECT session_id, started_ns FROM span_starts
            UNION ALL SELECT session_id, ended_ns FROM span_ends
        ) GROUP BY session_id
    ), opened AS (
        SELECT DISTINCT session_id FROM places JOIN segments USING (segment_id) WHERE state = 'open'
    ), begun AS (
        SELECT session_id, max(coalesce(opened_ns, 0)) AS opened_ns FROM places JOIN segments USING (segment_id)
        GROUP BY session_id
    ), named AS (
        SELECT session_id, arg_min(name, started_ns) AS name FROM session_starts GROUP BY session_id
    )
    SELECT session_id, name, last_ns, opened.session_id IS NOT NULL, opened_ns
    FROM (SELECT DISTINCT session_id FROM places WHERE session_id IS NOT NULL)
    LEFT JOIN seen USING (session_id)
    LEFT JOIN opened USING (session_id)
    LEFT JOIN named USING (session_id)
    LEFT JOIN begun USING (session_id)
    -- Skip sessions whose facts were pruned after their last record; they are listed only if they have newer records.
    WHERE $what = 'all' OR NOT EXISTS (
        SELECT 1 FROM prunings
        WHERE prunings.session_id = begun.session_id AND pruned_ns >= greatest(begun.opened_ns, coalesce(last_ns, 0))
    )
    ORDER BY last_ns, session_id
"""
