"""Accounts: what happened to each record that the recorder received, so that received = written + dropped + waiting."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentobs.records.exchanges import (
    ModelExchange,
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
"""How many sessions are counted separately; beyond this number the oldest is forgotten."""

Missing = tuple[str, str, str]
"""The session of records, their kind, and why they were dropped."""

DELETED = "deleted"
"""The reason for records that are missing because their segment was deleted by somebody else."""


@dataclass(slots=True)
class Accounts:
    """Counts. A caller that uses them from several threads must hold a lock."""

    given: int = 0
    """Records that were received."""
    written: int = 0
    """Records that are completely in the journal."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records that were dropped, by reason."""
    _missing: Counter[Missing] = field(default_factory=Counter)
    _held: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records in the current segment, by session and kind."""
    _told: Counter[Missing] = field(default_factory=Counter)
    """The gaps that the current segment reports."""
    _given: dict[str, int] = field(default_factory=dict)
    _written: dict[str, int] = field(default_factory=dict)

    def give(self, session_id: str) -> int:
        """Count a received record; return how many its session has."""
        self.given += 1
        count = self._given[session_id] = self._given.get(session_id, 0) + 1
        if count == 1 and len(self._given) > KNOWN_SESSIONS:
            self.end(next(iter(self._given)))
        return count

    def begin_segment(self) -> None:
        """Note that a new segment is written from now on."""
        self._held.clear()
        self._told.clear()

    def write(self, session_id: str, kind: str) -> None:
        """Count a written record."""
        self.written += 1
        held = (session_id, kind)
        self._held[
            held if held in self._held or len(self._held) < KNOWN_SESSIONS else (OTHERS, kind)
        ] += 1
        self._written[session_id] = self._written.get(session_id, 0) + 1

    def drop(self, session_id: str, kind: str, reason: str) -> None:
        """Count a dropped record."""
        self.dropped[reason] += 1
        self._miss((session_id, kind, reason), 1)

    def lose_segment(self) -> dict[str, int]:
        """Count the records and gaps of the current segment as dropped, because the segment is gone.

        Returns how many records each session has lost.
        """
        lost: Counter[str] = Counter()
        for (session_id, kind), records in self._held.items():
            lost[session_id] += records
            self._miss((session_id, kind, DELETED), records)
            if session_id in self._written:
                self._written[session_id] -= records
        self.written -= lost.total()
        self.dropped[DELETED] += lost.total()
        for missing, records in self._told.items():
            self._miss(missing, records)
        self.begin_segment()
        return lost

    def _miss(self, missing: Missing, records: int) -> None:
        known = missing in self._missing or len(self._missing) < KNOWN_SESSIONS
        self._missing[missing if known else (OTHERS, *missing[1:])] += records

    def tell(self, gap: Gap) -> None:
        """Note that a gap was written."""
        self._told[gap.session_id, gap.kind, gap.reason] += gap.records

    def written_of(self, session_id: str) -> int:
        """Return how many records of a session were written."""
        return self._written.get(session_id, 0)

    def sessions(self) -> list[str]:
        """Return the open sessions that have written records."""
        return list(self._written)

    def end(self, session_id: str) -> None:
        """Forget a session that has ended."""
        self._given.pop(session_id, None)
        self._written.pop(session_id, None)

    def has_missing(self) -> bool:
        """Return whether there are dropped records that no gap has reported yet."""
        return bool(self._missing)

    def take_missing(self, now: int, session_id: str | None = None) -> list[Gap]:
        """Return what was dropped since the last call, for one session or all."""
        taken = {m: n for m, n in self._missing.items() if session_id in (None, m[0])}
        for missing in taken:
            del self._missing[missing]
        return [
            Gap(session, now, Label(kind), Label(reason), records)
            for (session, kind, reason), records in taken.items()
        ]

    def put_back(self, gaps: list[Gap]) -> None:
        """Restore the counts of gaps that could not be written."""
        for gap in gaps:
            self._missing[gap.session_id, gap.kind, gap.reason] += gap.records

    def by_reason(self) -> Mapping[str, int]:
        """Return the number of dropped records, by reason."""
        return dict(self.dropped)


OTHERS = "others"
"""Stands for all sessions beyond the limit of separate counts."""


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
        case _:
            return TABLES.get(type(record), "events")


def reason_of(error: BaseException) -> str:
    """Return the reason for a failure as one word: the name of the operating system's error, such as `ENOSPC`, or the
    class name.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, f"errno_{error.errno}")
    name = type(error).__name__
    return name if is_label(name) else "error"
