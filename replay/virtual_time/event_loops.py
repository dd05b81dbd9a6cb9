"""Event loops: whether one still has something to do, for replays in which time is real.

The ready, scheduled and registered callbacks of asyncio (CPython 3.11 to 3.14) show whether anything is active except
waits of a replay itself. Other event loops do not reveal this.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agentobs.recording.wire.responses import wake
from replay.virtual_time.thread_states import OURS


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
        and thread.name not in OURS
        and thread not in resting
        for thread in threading.enumerate()
    )
