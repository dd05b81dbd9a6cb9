"""Send positions: how far each session was sent to a destination. They ensure that each record is sent only once.

A position is a record in a separate segment of the journal, so a rebuilt store also contains it. It is written after a
collector has accepted a message, and before the next message is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agentobs import world
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment
from agentobs.records.facts import TABLES, Export, columns
from agentobs.records.labels import Label
from agentobs.store.port import Store
from exporters.otlp.outbox import Signal
from exporters.stored_facts import RecordedSession

LOCK = ".export.lock"
"""The name of the lock file in the home that an exporting process locks."""


@dataclass(slots=True)
class SendPosition:
    """The position up to which a session was sent to a destination."""

    through: dict[str, int] = field(default_factory=dict)
    """The number of the last record that was sent, by segment."""
    is_complete: bool = False
    """Whether the session was sent to its end, including orphaned spans."""
    ended_through: dict[str, int] = field(default_factory=dict)
    """The value of `through` when the session was last sent to its end, with open spans sent as abandoned."""
    partial_items: dict[tuple[str, int], int] = field(default_factory=dict)
    """By segment and record number: how many items of the next record were accepted."""

    def has(self, segment_id: str, sequence: int) -> bool:
        """Return whether the items of a record were sent."""
        return sequence <= self.through.get(segment_id, 0)

    def has_opened_spans(self, segment_id: str, sequence: int) -> bool:
        """Return whether all spans that a record opens were sent, including open spans that were sent as abandoned."""
        return sequence <= self.ended_through.get(segment_id, 0)

    def advance(
        self, segment_id: str, sequence: int, *, is_complete: bool, partial_items: int
    ) -> None:
        """Move the position forward."""
        if sequence > self.through.get(segment_id, 0):
            self.through[segment_id] = sequence
            self.is_complete = False
        if partial_items:
            self.partial_items[segment_id, sequence] = partial_items
        if is_complete:
            self.is_complete, self.ended_through = True, dict(self.through)

    def has_all(self, session: RecordedSession) -> bool:
        """Return whether the complete session was sent."""
        is_done = all(self.has(part.segment_id, part.last) for part in session.parts)
        return is_done and (self.is_complete or not session.is_over)


def read_positions(store: Store, destination: Label) -> dict[tuple[Signal, str], SendPosition]:
    """Return the positions of a destination, by signal and session."""
    positions: dict[tuple[Signal, str], SendPosition] = {}
    sent = store.rows("internal/send_positions", destination=str(destination)).rows
    for signal, session_id, segment_id, sequence, is_complete, partial_items in sent:
        position = positions.setdefault((signal, session_id), SendPosition())
        position.advance(
            segment_id, sequence, is_complete=bool(is_complete), partial_items=partial_items or 0
        )
    return positions


class PositionWriter:
    """Writes positions into a segment, which is created for the first position."""

    def __init__(self, home: Home, destination: Label, profile: Label) -> None:
        """Write positions of one destination."""
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
        is_complete: bool = False,
        partial_items: int = 0,
    ) -> None:
        """Write how far a session was sent, by segment. Return when the operating system has accepted the write.

        Raises:
            OSError: the position cannot be written.
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
                complete=is_complete and is_last,
                at_ns=now,
                partial_items=partial_items if is_last else 0,
            )
            rows.append((TABLES[Export], columns(fact)))
        self._segment.facts.append_all(rows)

    def close(self) -> None:
        """Seal the segment if a position was written."""
        if self._segment is not None:
            self._segment.close()


@contextlib.contextmanager
def export_lock(home: Home) -> Iterator[None]:
    """Hold the lock for sending recorded data, because two processes would send each record twice.

    Raises:
        UsageError: another process holds the lock.
    """
    descriptor = os.open(
        home.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "another process is exporting this home",
                where=str(home.path),
                todo="Wait until it has ended",
            ) from None
        yield
    finally:
        os.close(descriptor)
