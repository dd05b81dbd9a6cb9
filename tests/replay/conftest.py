"""What several tests of replays need."""

from __future__ import annotations

import time

import anyio
import pytest


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What anybody waits for, in seconds; nobody waits."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(anyio, "sleep", sleep)
    return found
