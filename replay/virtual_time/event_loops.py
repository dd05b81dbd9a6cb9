"""Event loops: whether a loop still has something to do, for replays in which time is real.

The ready, scheduled and registered callbacks of asyncio (CPython 3.11 to 3.14) show whether anything is active apart
from the checks of held responses. Other event loops do not reveal this.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from agentobs.recording.wire.responses import wake
from replay.virtual_time.thread_states import OWN_THREADS


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of asyncio that runs in this thread, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def pending_timers(
    held_count: int, earlier_threads: frozenset[threading.Thread]
) -> list[asyncio.TimerHandle] | None:
    """Return the pending timers of the running loop, soonest first; None if anything else can run before them.

    Args:
        held_count: the number of held responses, whose checks do not count.
        earlier_threads: the threads that existed before the replay.
    """
    loop: Any = current_loop()
    try:
        ready, files = len(loop._ready), len(loop._selector.get_map())
        scheduled = [timer for timer in loop._scheduled if not timer.cancelled()]
    except AttributeError:
        return None
    others = sorted(timer for timer in scheduled if timer._callback is not wake)
    check_timers = len(scheduled) - len(others)
    # The check of each held response is ready or scheduled, except the check that runs now. One file belongs to the
    # loop itself: threads wake the loop through this file.
    if ready + check_timers >= held_count or files > 1 or busy_threads(loop, earlier_threads):
        return None
    return others if not others or others[0].when() > loop.time() else None


def busy_threads(loop: Any, earlier_threads: frozenset[threading.Thread]) -> bool:
    """Return whether there is a thread that may wake this thread.

    Threads that existed before the replay do not count, nor does the loop's own thread pool if all of its threads are
    idle.
    """
    pool = loop._default_executor if loop is not None else None
    # A thread of a pool counts as idle from the end of its first work item until the next work item is submitted.
    idle_threads = (
        pool._threads if pool and pool._idle_semaphore._value >= len(pool._threads) else ()
    )
    here = threading.get_ident()
    return any(
        thread.ident != here
        and thread not in earlier_threads
        and thread.name not in OWN_THREADS
        and thread not in idle_threads
        for thread in threading.enumerate()
    )
