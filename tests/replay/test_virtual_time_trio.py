"""Waits of agents on trio pass at once in a replay, whether trio was imported before or during the replay."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest
import trio

from agentobs import world
from replay.virtual_time.time_patches import virtual_time

MINUTE = 60.0
REAL_SECONDS = 20.0

Wait = Callable[[], Awaitable[None]]


async def sleeps() -> None:
    await trio.sleep(MINUTE)


async def sleeps_with_anyio() -> None:
    await anyio.sleep(MINUTE)


async def gives_up() -> None:
    with trio.move_on_after(MINUTE) as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught


async def runs_an_anyio_group() -> None:
    ended: list[int] = []

    async def one(number: int) -> None:
        await anyio.sleep(number * MINUTE / 3)
        ended.append(number)

    async with anyio.create_task_group() as group:
        for number in (3, 1, 2):
            group.start_soon(one, number)
    assert ended == [1, 2, 3]


async def sleeps_in_a_thread() -> None:
    await trio.to_thread.run_sync(time.sleep, MINUTE / 2)
    await anyio.to_thread.run_sync(time.sleep, MINUTE / 2)


WAITS: list[Wait] = [sleeps, sleeps_with_anyio, gives_up, runs_an_anyio_group, sleeps_in_a_thread]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_a_minute_of_waits_passes_at_once(wait: Wait) -> None:
    """A minute of waits passes at once on trio's clock, in almost no real time."""

    async def main() -> float:
        before = trio.current_time()
        await wait()
        return trio.current_time() - before

    started = world.monotonic()
    with virtual_time():
        assert trio.run(main) >= MINUTE
    assert (world.monotonic() - started) / 1e9 < REAL_SECONDS


def test_threads_and_trio_share_one_clock() -> None:
    """A thread that sleeps for 10 s continues before a trio task that sleeps for 20 s."""
    ended: list[str] = []

    def thread() -> None:
        time.sleep(10)
        ended.append("thread")

    async def main() -> None:
        await trio.sleep(20)
        ended.append("task")

    with virtual_time():
        for _ in range(10):
            other = threading.Thread(target=thread)
            other.start()
            trio.run(main)
            other.join()
    assert ended == ["thread", "task"] * 10


@pytest.mark.slow
def test_trio_may_be_imported_after_the_replay_has_opened() -> None:
    """Waits on trio also pass at once if trio is imported after the replay has opened, as by the recorded entry."""
    program = """
import sys, time
from replay.virtual_time.time_patches import virtual_time
from agentobs import world
assert "trio" not in sys.modules
started = world.monotonic()
with virtual_time():
    import trio
    trio.run(trio.sleep, 3600)
real = trio._core._run.SystemClock.current_time
assert not hasattr(real, "__wrapped__"), real
print((world.monotonic() - started) / 1e9)
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert float(ran.stdout) < REAL_SECONDS
