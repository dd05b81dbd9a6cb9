"""What several tests of replays need."""

from __future__ import annotations

import time

import anyio
import pytest

from replay.virtual_time.thread_states import ThreadStates


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What anybody waits for, in seconds; nobody waits."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(anyio, "sleep", sleep)
    return found


@pytest.fixture
def no_foreign_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library has threads of its own, which other tests of the process may have left: a deadlock is certain."""
    monkeypatch.setattr(ThreadStates, "has_foreign_threads", lambda self: False)
