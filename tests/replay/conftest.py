"""Pytest fixtures that several tests of replays use."""

from __future__ import annotations

import importlib
import inspect
import time

import anyio
import pytest

from replay.isolation.isolation import PRELOADED
from replay.playback.warmup import warm_up
from replay.virtual_time.thread_states import ThreadStates


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of requested waits in seconds; each wait returns immediately."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(time, "sleep", found.append)
    monkeypatch.setattr(anyio, "sleep", sleep)
    return found


@pytest.fixture
def no_foreign_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide threads of libraries that earlier tests may have started, so that a deadlock is certain."""
    monkeypatch.setattr(ThreadStates, "has_foreign_threads", lambda self: False)


@pytest.fixture(scope="session")
def warm_process() -> None:
    """Do the work in this process that each inner run of pytest would otherwise repeat in its own processes.

    This work consists of the imports and the warm-up of the template process, and of the map from files to modules that
    `inspect` needs for a traceback. DuckDB is imported because it cannot be imported twice in a process, and pytester
    forgets the modules that a test has imported.
    """
    for name in (*PRELOADED, "duckdb"):
        importlib.import_module(name)
    warm_up()
    inspect.getmodule(warm_up.__code__)
