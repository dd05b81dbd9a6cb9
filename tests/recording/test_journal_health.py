"""The health of the journal: the state that follows from refused and successful writes."""

from __future__ import annotations

import pytest

from agentobs import world
from agentobs.recording.journal_health import DiskState, JournalHealth

PAUSE_SECONDS = 0.2


class Clock:
    """A monotonic clock that is moved by tests."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def move(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(world, "monotonic", lambda: moved.now_ns)
    return moved


def test_a_new_journal_is_writable() -> None:
    health = JournalHealth()
    assert health.disk() is DiskState.WRITABLE
    assert (health.refusal, health.is_segment_deleted) == (None, False)


def test_a_refused_write_is_retried_after_a_pause(clock: Clock) -> None:
    """After a refused write, the disk is paused; after the pause, a retry is due until a write succeeds."""
    health = JournalHealth()
    health.note_refusal("ENOSPC", PAUSE_SECONDS)
    assert (health.disk(), health.refusal) == (DiskState.PAUSED, "ENOSPC")
    clock.move(PAUSE_SECONDS - 0.001)
    assert health.disk() is DiskState.PAUSED
    clock.move(0.001)
    assert health.disk() is DiskState.RETRY_DUE
    clock.move(3600)
    assert (health.disk(), health.refusal) == (DiskState.RETRY_DUE, "ENOSPC")
    health.note_success()
    assert (health.disk(), health.refusal) == (DiskState.WRITABLE, None)


def test_a_failed_retry_starts_another_pause(clock: Clock) -> None:
    """A failed retry starts another pause, and its error becomes the reason of the refusal."""
    health = JournalHealth()
    health.note_refusal("ENOSPC", PAUSE_SECONDS)
    clock.move(PAUSE_SECONDS)
    health.note_refusal("EIO", PAUSE_SECONDS)
    assert (health.disk(), health.refusal) == (DiskState.PAUSED, "EIO")
    clock.move(PAUSE_SECONDS)
    assert health.disk() is DiskState.RETRY_DUE


def test_a_new_segment_does_not_end_a_refusal(clock: Clock) -> None:
    """A new segment does not end a refusal, because a disk may create a file and still refuse to write to it."""
    health = JournalHealth()
    health.note_refusal("ENOSPC", PAUSE_SECONDS)
    clock.move(PAUSE_SECONDS)
    health.note_new_segment()
    assert health.disk() is DiskState.RETRY_DUE
    health.note_success()
    assert health.disk() is DiskState.WRITABLE


def test_a_deleted_segment_and_a_refusal_are_independent(clock: Clock) -> None:
    """Only a new segment ends the state "deleted", and only a successful write ends a refusal."""
    health = JournalHealth()
    health.note_deleted_segment()
    assert (health.disk(), health.is_segment_deleted) == (DiskState.WRITABLE, True)
    health.note_refusal("EROFS", PAUSE_SECONDS)
    assert (health.disk(), health.is_segment_deleted) == (DiskState.PAUSED, True)
    clock.move(PAUSE_SECONDS)
    health.note_new_segment()
    assert (health.disk(), health.is_segment_deleted) == (DiskState.RETRY_DUE, False)
    health.note_deleted_segment()
    health.note_success()
    assert (health.disk(), health.is_segment_deleted) == (DiskState.WRITABLE, True)
