"""Journal health: whether the last operations on the journal succeeded."""

from __future__ import annotations

import enum

from agentobs import world


class DiskState(enum.Enum):
    """Whether the operating system accepts writes to the journal."""

    WRITABLE = "writable"
    """No write was refused since the last successful one."""
    PAUSED = "paused"
    """The last write was refused; nothing is written until a pause is over."""
    RETRY_DUE = "retry_due"
    """The last write was refused, the pause is over, and the next write shows whether the disk works again."""


class JournalHealth:
    """The state of the disk, and whether the current segment was deleted.

    The two are independent: a segment can be deleted while the disk is full. Only the worker thread changes them; any
    thread may read them.
    """

    __slots__ = ("_retry_ns", "is_segment_deleted", "refusal")

    def __init__(self) -> None:
        """Start with a writable disk and no deleted segment."""
        self.refusal: str | None = None
        """Why the operating system refused the last write, as one word; None if the write succeeded."""
        self.is_segment_deleted = False
        """Whether the segment was deleted, and no record that needs a new segment has arrived since then."""
        self._retry_ns = 0

    def disk(self) -> DiskState:
        """Return the state of the disk at this moment."""
        if self.refusal is None:
            return DiskState.WRITABLE
        return DiskState.PAUSED if world.monotonic() < self._retry_ns else DiskState.RETRY_DUE

    def note_refusal(self, reason: str, pause_seconds: float) -> None:
        """Note that the operating system refused a write; the next one is tried after `pause_seconds`."""
        self.refusal = reason
        self._retry_ns = world.monotonic() + int(pause_seconds * 1e9)

    def note_success(self) -> None:
        """Note that a write succeeded."""
        self.refusal = None

    def note_deleted_segment(self) -> None:
        """Note that the current segment no longer exists."""
        self.is_segment_deleted = True

    def note_new_segment(self) -> None:
        """Note that a new segment was created. The disk counts as refusing until a write to it succeeds."""
        self.is_segment_deleted = False
