"""Loops: what an event loop still has to do, and its clock, which need not be waited for in a replay.

What asyncio (CPython 3.11 to 3.14) has ready, scheduled and registered tells whether anything goes on but those who
look whether they may go on. Other loops do not say.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agentobs.recording.answers import wake

WATCH = "agentobs-replay-watch"
"""The name of the thread that looks after the deadline."""


def loop_here() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of asyncio that runs in this thread, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def timers(waiting: int, known: frozenset[threading.Thread]) -> list[asyncio.TimerHandle] | None:
    """Return what is scheduled, the next first, where nothing is to run before it but so many that look; else None."""
    loop: Any = loop_here()
    try:
        ready, files = len(loop._ready), len(loop._selector.get_map())
        scheduled = [timer for timer in loop._scheduled if not timer.cancelled()]
    except AttributeError:
        return None
    others = sorted(timer for timer in scheduled if timer._callback is not wake)
    looking = len(scheduled) - len(others)
    # Each of those that look is ready or sleeps, and one of them runs; the one file is the loop's own, by which
    # threads wake it.
    if ready + looking >= waiting or files > 1 or busy_threads(loop, known):
        return None
    return others if not others or others[0].when() > loop.time() else None


def busy_threads(loop: Any, known: frozenset[threading.Thread]) -> bool:
    """Return whether a thread runs that may wake this one: none of the loop's own pool where that has nothing to do,
    and none of those that were there before the replay.
    """
    pool = loop._default_executor if loop is not None else None
    # Each thread of a pool counts as idle from its first work done until the next is handed in.
    resting = pool._threads if pool and pool._idle_semaphore._value >= len(pool._threads) else ()
    here = threading.get_ident()
    return any(
        thread.ident != here
        and thread not in known
        and thread.name != WATCH
        and thread not in resting
        for thread in threading.enumerate()
    )


class _Ahead:
    """The clock of a loop, so many seconds ahead."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time, self.seconds = time, 0.0

    def __call__(self) -> float:
        return self._time() + self.seconds


def remaining(timer: asyncio.TimerHandle) -> float:
    """Return after how many seconds of this loop's clock a timer is due."""
    return timer.when() - asyncio.get_running_loop().time()


def leap_to(timer: asyncio.TimerHandle) -> None:
    """Put the clock of this loop on to where a timer is due, for all that is scheduled in it.

    It stays ahead from then on: clocks do not go back. A timer moved alone would overtake others, and whoever looks at
    the clock when it is woken, as anyio does, would sleep again.
    """
    loop: Any = asyncio.get_running_loop()
    clock = loop.time if isinstance(loop.time, _Ahead) else _Ahead(loop.time)
    clock.seconds += timer.when() - clock()
    loop.time = clock
