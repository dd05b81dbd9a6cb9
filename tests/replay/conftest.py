"""Pytest fixtures that several tests of replays use."""

from __future__ import annotations

import time

import anyio
import pytest

from replay.virtual_time.thread_states import ThreadStates


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of requested waits in seconds. Waits return at once."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(anyio, "sleep", sleep)
    return found


@pytest.fixture
def no_foreign_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide threads of libraries, which earlier tests may have started, so that a deadlock is certain."""
    monkeypatch.setattr(ThreadStates, "has_foreign_threads", lambda self: False)
