"""Marks: how far each session was sent to a destination, noted in the journal, so that each record goes out once.

A mark is a record in a segment of its own, as a pruning is: the store shows it, and a store that is built anew from the
segments has it, too. It is written when a collector has taken a message, and before the next one is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import duckdb

from agentobs import world
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment
from agentobs.records.facts import TABLES, Export, columns
from agentobs.records.labels import Label
from exporters.otlp.outbox import Signal
from exporters.stored_facts import Recorded

LOCK = ".export.lock"
"""The file in the home that whoever sends holds."""


@dataclass(slots=True)
class Mark:
    """How far a session was sent."""

    through: dict[str, int] = field(default_factory=dict)
    """The number of the last record that was sent, by segment."""
    is_whole: bool = False
    """Whether it was sent to its end, with what nobody had ended."""
    ended: dict[str, int] = field(default_factory=dict)
    """How far it went when that was last so: what was open there was told as abandoned."""
    beyond: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many things were taken of those that come next after a record."""

    def has(self, segment_id: str, sequence: int) -> bool:
        """Return whether what a record told was sent."""
        return sequence <= self.through.get(segment_id, 0)

    def has_ended(self, segment_id: str, sequence: int) -> bool:
        """Return whether what a record opens has been told, as abandoned where nobody had ended it."""
        return sequence <= self.ended.get(segment_id, 0)

    def go_on(self, segment_id: str, sequence: int, *, is_whole: bool, beyond: int) -> None:
        """Take in one more step."""
        if sequence > self.through.get(segment_id, 0):
            self.through[segment_id] = sequence
            self.is_whole = False
        if beyond:
            self.beyond[segment_id, sequence] = beyond
        if is_whole:
            self.is_whole, self.ended = True, dict(self.through)

    def has_all(self, session: Recorded) -> bool:
        """Return whether nothing of a session is left to be sent."""
        is_done = all(self.has(part.segment_id, part.last) for part in session.parts)
        return is_done and (self.is_whole or not session.is_over)


def read_marks(
    connection: duckdb.DuckDBPyConnection, destination: Label
) -> dict[tuple[Signal, str], Mark]:
    """Return the marks of a destination, by signal and session."""
    found: dict[tuple[Signal, str], Mark] = {}
    for signal, session_id, segment_id, sequence, whole, beyond in connection.execute(
        _MARKS, {"destination": str(destination)}
    ).fetchall():
        mark = found.setdefault((signal, session_id), Mark())
        mark.go_on(segment_id, sequence, is_whole=bool(whole), beyond=beyond or 0)
    return found


class Marker:
    """Writes marks; the segment comes with the first one."""

    def __init__(self, home: Home, destination: Label, profile: Label) -> None:
        """Write for one destination."""
        self._home, self._destination, self._profile = home, destination, profile
        self._segment: Segment | None = None

    def write(
        self,
        signal: Signal,
        session_id: str,
        through: Mapping[str, int],
        *,
        items: int = 0,
        rejected: int = 0,
        is_whole: bool = False,
        beyond: int = 0,
    ) -> None:
        """Note how far a session was sent, by segment; when this returns it survives the process.

        Raises:
            OSError: it cannot be written.
        """
        if self._segment is None:
            self._segment = Segment(self._home)
        now, rows = world.now(), []
        for number, (segment_id, sequence) in enumerate(through.items(), 1):
            is_last = number == len(through)
            fact = Export(
                session_id=session_id,
                destination=self._destination,
                profile=self._profile,
                signal=signal,
                through_segment_id=segment_id,
                through_sequence=sequence,
                items=items if is_last else 0,
                rejected=rejected if is_last else 0,
                whole=is_whole and is_last,
                at_ns=now,
                beyond=beyond if is_last else 0,
            )
            rows.append((TABLES[Export], columns(fact)))
        self._segment.facts.append_all(rows)

    def close(self) -> None:
        """Seal the segment, where anything was written."""
        if self._segment is not None:
            self._segment.close()


@contextlib.contextmanager
def sending_alone(home: Home) -> Iterator[None]:
    """Be the only one that sends what was recorded: two would send each record twice.

    Raises:
        UsageError: another process is at it.
    """
    descriptor = os.open(
        home.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another process is sending what was recorded here",
                where=str(home.path),
                todo="Wait until it has ended",
            ) from None
        yield
    finally:
        os.close(descriptor)


_MARKS = """
    SELECT signal, session_id, through_segment_id, through_sequence, whole, beyond
    FROM exports WHERE destination = $destination ORDER BY segment_id, sequence
"""
