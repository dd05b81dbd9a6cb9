"""Accounts: what became of every record that the recorder was given, so that given = written + dropped + waiting."""

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
"""How many sessions are counted one by one; the oldest is forgotten beyond it."""

Missing = tuple[str, str, str]
"""The session of some records, their kind, and why they were dropped."""

DELETED = "deleted"
"""Why records are missing that were written to a segment which somebody took away."""


@dataclass(slots=True)
class Accounts:
    """Counts; whoever uses it from several threads holds a lock."""

    given: int = 0
    """Records that were handed in."""
    written: int = 0
    """Records that are in the journal, with all that they say."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Records that are not, by reason."""
    _missing: Counter[Missing] = field(default_factory=Counter)
    _held: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Records in the segment that is being written, by session and kind."""
    _told: Counter[Missing] = field(default_factory=Counter)
    """What that segment says is missing."""
    _given: dict[str, int] = field(default_factory=dict)
    _written: dict[str, int] = field(default_factory=dict)

    def give(self, session_id: str) -> int:
        """Count a record that was handed in; return how many its session has."""
        self.given += 1
        count = self._given[session_id] = self._given.get(session_id, 0) + 1
        if count == 1 and len(self._given) > KNOWN_SESSIONS:
            self.end(next(iter(self._given)))
        return count

    def begin_segment(self) -> None:
        """Hear that what is written from now on lies elsewhere."""
        self._held.clear()
        self._told.clear()

    def write(self, session_id: str, kind: str) -> None:
        """Count a record that was written."""
        self.written += 1
        held = (session_id, kind)
        self._held[
            held if held in self._held or len(self._held) < KNOWN_SESSIONS else (OTHERS, kind)
        ] += 1
        self._written[session_id] = self._written.get(session_id, 0) + 1

    def drop(self, session_id: str, kind: str, reason: str) -> None:
        """Count a record that was dropped."""
        self.dropped[reason] += 1
        self._miss((session_id, kind, reason), 1)

    def lose_segment(self) -> dict[str, int]:
        """Count what is in the segment that is being written as dropped: it is gone, and what it told of gaps as well.

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
        """Return the sessions of which something was written and that have not ended."""
        return list(self._written)

    def end(self, session_id: str) -> None:
        """Forget a session that has ended."""
        self._given.pop(session_id, None)
        self._written.pop(session_id, None)

    def has_missing(self) -> bool:
        """Return whether something was dropped of which nothing has been written yet."""
        return bool(self._missing)

    def take_missing(self, now: int, session_id: str | None = None) -> list[Gap]:
        """Return what was dropped since this was asked last, of one session or all."""
        taken = {m: n for m, n in self._missing.items() if session_id in (None, m[0])}
        for missing in taken:
            del self._missing[missing]
        return [
            Gap(session, now, Label(kind), Label(reason), records)
            for (session, kind, reason), records in taken.items()
        ]

    def put_back(self, gaps: list[Gap]) -> None:
        """Count again what could not be written."""
        for gap in gaps:
            self._missing[gap.session_id, gap.kind, gap.reason] += gap.records

    def by_reason(self) -> Mapping[str, int]:
        """Return how many records were dropped, by reason."""
        return dict(self.dropped)


OTHERS = "others"
"""Stands for the sessions that are too many to be told apart."""


def kind_of(record: Record) -> str:
    """Return the table in which a record would have been a row."""
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
    """Return why something failed, in a word: the name of the system's error, such as `ENOSPC`, or the class."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, f"errno_{error.errno}")
    name = type(error).__name__
    return name if is_label(name) else "error"
