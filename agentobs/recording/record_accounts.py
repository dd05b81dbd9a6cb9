"""Accounts: what happened to each record that the recorder received. Received = written + dropped + waiting."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field

from agentobs.records.exchanges import (
    ModelExchange,
    ObservedEffect,
    SessionCall,
    SessionReturn,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.facts import (
    TABLES,
    Attempt,
    Gap,
    SessionEnd,
    SessionStart,
    ToolResult,
    WorldAnswer,
)
from agentobs.records.labels import Label, is_label
from agentobs.sink import Record

KNOWN_SESSIONS = 10_000
"""The maximum number of sessions that are counted separately; beyond this number, the oldest is forgotten. Our
choice.
"""

GapKey = tuple[str, str, str]
"""The session of dropped records, their kind, and why they were dropped."""

DELETED = "deleted"
"""The reason for records that are missing because another program deleted their segment."""


@dataclass(slots=True)
class Accounts:
    """Counts. A caller that uses them from several threads must hold a lock."""

    received: int = 0
    """Records that were received."""
    written: int = 0
    """Records that are completely in the journal."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records that were dropped, by reason."""
    _gaps: Counter[GapKey] = field(default_factory=Counter)
    """Dropped records that no gap in the journal reports yet."""
    _in_segment: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records in the current segment, by session and kind."""
    _reported: Counter[GapKey] = field(default_factory=Counter)
    """The gaps that the current segment reports."""
    _received_by_session: dict[str, int] = field(default_factory=dict)
    _written_by_session: dict[str, int] = field(default_factory=dict)

    def count_received(self, session_id: str) -> int:
        """Count a received record; return how many records of its session were received so far."""
        self.received += 1
        count = self._received_by_session[session_id] = (
            self._received_by_session.get(session_id, 0) + 1
        )
        if count == 1 and len(self._received_by_session) > KNOWN_SESSIONS:
            self.end_session(next(iter(self._received_by_session)))
        return count

    def begin_segment(self) -> None:
        """Note that a new segment is written from now on."""
        self._in_segment.clear()
        self._reported.clear()

    def count_written(self, session_id: str, kind: str) -> None:
        """Count a written record."""
        self.written += 1
        key = (session_id, kind)
        is_known = key in self._in_segment or len(self._in_segment) < KNOWN_SESSIONS
        self._in_segment[key if is_known else (OTHERS, kind)] += 1
        self._written_by_session[session_id] = self._written_by_session.get(session_id, 0) + 1

    def count_dropped(self, session_id: str, kind: str, reason: str) -> None:
        """Count a dropped record."""
        self.dropped[reason] += 1
        self._add_gap((session_id, kind, reason), 1)

    def lose_segment(self) -> dict[str, int]:
        """Count the records and gaps of the current segment as dropped, because the segment was deleted.

        Returns:
            How many records each session has lost.
        """
        lost: Counter[str] = Counter()
        for (session_id, kind), records in self._in_segment.items():
            lost[session_id] += records
            self._add_gap((session_id, kind, DELETED), records)
            if session_id in self._written_by_session:
                self._written_by_session[session_id] -= records
        self.written -= lost.total()
        self.dropped[DELETED] += lost.total()
        for key, records in self._reported.items():
            self._add_gap(key, records)
        self.begin_segment()
        return lost

    def _add_gap(self, key: GapKey, records: int) -> None:
        is_known = key in self._gaps or len(self._gaps) < KNOWN_SESSIONS
        self._gaps[key if is_known else (OTHERS, *key[1:])] += records

    def count_reported_gap(self, gap: Gap) -> None:
        """Note that a gap was written into the current segment."""
        self._reported[gap.session_id, gap.kind, gap.reason] += gap.records

    def written_of(self, session_id: str) -> int:
        """Return how many records of a session were written."""
        return self._written_by_session.get(session_id, 0)

    def sessions(self) -> list[str]:
        """Return the open sessions that have written records."""
        return list(self._written_by_session)

    def end_session(self, session_id: str) -> None:
        """Forget the counts of a session that has ended."""
        self._received_by_session.pop(session_id, None)
        self._written_by_session.pop(session_id, None)

    def has_gaps(self) -> bool:
        """Return whether there are dropped records that no gap in the journal reports yet."""
        return bool(self._gaps)

    def take_gaps(self, now: int, session_id: str | None = None) -> list[Gap]:
        """Remove and return the gaps that are not reported yet, for one session or all, dated `now`."""
        keys = [key for key in self._gaps if session_id in (None, key[0])]
        return [
            Gap(session, now, Label(kind), Label(reason), self._gaps.pop((session, kind, reason)))
            for session, kind, reason in keys
        ]

    def restore_gaps(self, gaps: list[Gap]) -> None:
        """Add gaps again that could not be written."""
        for gap in gaps:
            self._gaps[gap.session_id, gap.kind, gap.reason] += gap.records


OTHERS = "others"
"""Represents all sessions and gaps beyond the limit of separate counts."""


def kind_of(record: Record) -> str:
    """Return the table that would have contained a row for a record."""
    match record:
        case ModelExchange():
            return TABLES[Attempt]
        case ToolExchange():
            return TABLES[ToolResult]
        case WorldExchange():
            return TABLES[WorldAnswer]
        case SessionCall():
            return TABLES[SessionStart]
        case SessionReturn():
            return TABLES[SessionEnd]
        case ObservedEffect():
            return TABLES[type(record.fact)]
        case _:
            return TABLES.get(type(record), "events")


def reason_of(error: BaseException) -> str:
    """Return the reason for a failure as one word: the name of the operating system's error, such as `ENOSPC`, or the
    name of the exception's class.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, f"errno_{error.errno}")
    name = type(error).__name__
    return name if is_label(name) else "error"
