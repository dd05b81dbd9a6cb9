"""Send positions: how far each session was sent to a destination, recorded in the journal, so that each record is sent
once.

A position is a record in a segment of its own, as a pruning is: the store shows it, and a rebuilt store has it, too. It
is written when a collector has accepted a message, and before the next one is sent.
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
from exporters.stored_facts import Recorded

LOCK = ".export.lock"
"""The lock file in the home that a sending process holds."""


@dataclass(slots=True)
class Mark:
    """How far a session was sent."""

    through: dict[str, int] = field(default_factory=dict)
    """The number of the last record that was sent, by segment."""
    is_whole: bool = False
    """Whether it was sent to its end, including orphaned spans."""
    ended: dict[str, int] = field(default_factory=dict)
    """The position at which that was last true: open spans were sent as abandoned."""
    beyond: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many items after a record were accepted."""

    def has(self, segment_id: str, sequence: int) -> bool:
        """Return whether the items of a record were sent."""
        return sequence <= self.through.get(segment_id, 0)

    def has_ended(self, segment_id: str, sequence: int) -> bool:
        """Return whether the spans that a record opens have been sent, as abandoned if they were not ended."""
        return sequence <= self.ended.get(segment_id, 0)

    def go_on(self, segment_id: str, sequence: int, *, is_whole: bool, beyond: int) -> None:
        """Add one more step."""
        if sequence > self.through.get(segment_id, 0):
            self.through[segment_id] = sequence
            self.is_whole = False
        if beyond:
            self.beyond[segment_id, sequence] = beyond
        if is_whole:
            self.is_whole, self.ended = True, dict(self.through)

    def has_all(self, session: Recorded) -> bool:
        """Return whether nothing of a session remains to be sent."""
        is_done = all(self.has(part.segment_id, part.last) for part in session.parts)
        return is_done and (self.is_whole or not session.is_over)


def read_marks(store: Store, destination: Label) -> dict[tuple[Signal, str], Mark]:
    """Return the positions of a destination, by signal and session."""
    found: dict[tuple[Signal, str], Mark] = {}
    sent = store.rows("internal/send_positions", destination=str(destination)).rows
    for signal, session_id, segment_id, sequence, whole, beyond in sent:
        mark = found.setdefault((signal, session_id), Mark())
        mark.go_on(segment_id, sequence, is_whole=bool(whole), beyond=beyond or 0)
    return found


class Marker:
    """Writes positions; the segment is created with the first one."""

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
        """Write how far a session was sent, by segment; it survives the process when this returns.

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
                complete=is_whole and is_last,
                at_ns=now,
                partial_items=beyond if is_last else 0,
            )
            rows.append((TABLES[Export], columns(fact)))
        self._segment.facts.append_all(rows)

    def close(self) -> None:
        """Seal the segment if anything was written."""
        if self._segment is not None:
            self._segment.close()


@contextlib.contextmanager
def sending_alone(home: Home) -> Iterator[None]:
    """Hold the lock for sending recorded data: two processes would send each record twice.

    Raises:
        UsageError: another process holds it.
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
