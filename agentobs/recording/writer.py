"""The writer: puts what the recorder makes of records into this process's segment."""

from __future__ import annotations

from agentobs.recording.home import Home
from agentobs.recording.interpreter import Interpretation
from agentobs.recording.journal import Segment
from agentobs.records.facts import TABLES, columns

SEGMENT_BYTES = 64 * 1024 * 1024
"""A segment is closed and the next one opened beyond this size."""


class Writer:
    """Appends to segments of one home, one after the other; used by the recorder's thread alone."""

    def __init__(self, home: Home) -> None:
        """Write into `home`; the first segment is created with the first record."""
        self._home = home
        self._segment: Segment | None = None

    def turn(self) -> bool:
        """Begin another segment where there is none, or the last one is full; returns whether it did.

        Raises:
            OSError: it cannot be created.
        """
        if self._segment is not None and self._segment.size > SEGMENT_BYTES:
            self.seal()
        if self._segment is not None:
            return False
        self._segment = Segment(self._home)
        return True

    def write(self, interpretation: Interpretation) -> None:
        """Append what one record says, content first.

        Raises:
            OSError: not all of it was written.
        """
        segment = self._segment
        assert segment is not None
        for kind, line in interpretation.contents:
            segment.content.append(kind, line)
        for told in interpretation.told:
            row = {**columns(told.fact), "session_sequence": told.sequence}
            segment.facts.append(TABLES[type(told.fact)], row)

    def sync(self) -> None:
        """Make what was written survive a power loss.

        Raises:
            OSError: it may not.
        """
        if self._segment is not None:
            self._segment.sync()

    def seal(self) -> None:
        """Close the segment in order; the next record begins another one.

        Raises:
            OSError: it could not be closed in order.
        """
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def abandon(self) -> None:
        """Let go of the segment without writing: it is the parent's."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.abandon()
