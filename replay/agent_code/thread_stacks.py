"""Stacks: where each thread of the process stands, read without running anybody's code.

`sys._current_frames` holds a lock of the interpreter while it allocates. In CPython up to 3.11.7 and 3.12.0 the garbage
collector may run there; a finalizer may then release the GIL, and a thread that ends waits for that lock while it holds
the GIL, so the process stops for good (gh-106883). This module is the only place that makes the call, with the
collector switched off.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_lock = threading.RLock()
"""Held during the call, so that no concurrent caller switches the collector on. A signal handler may enter twice."""


def thread_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identity.

    The garbage collector is off meanwhile, and on again only if it was on.
    """
    with _lock:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_on:
                gc.enable()


# A fork while another thread makes the call would leave the child with a held lock and the collector off.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def python_threads() -> dict[int, threading.Thread]:
    """Return the threads that the `threading` module knows, by identity.

    Unlike `threading.enumerate` this takes no lock, so a signal handler and a finalizer may call it.
    """
    active: dict[int, threading.Thread] = threading._active.copy()  # type: ignore[attr-defined]
    return active


def native_id(thread: threading.Thread) -> int:
    """Return the identity of a thread in the operating system, in a forked process, too.

    There `Thread.native_id` of the one thread that is left is still that of the parent (CPython 3.11); on Linux it has
    the number of its process.
    """
    if thread is threading.main_thread() and sys.platform == "linux":
        return os.getpid()
    return thread.native_id or 0


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def package_of(frame: FrameType) -> str:
    """Return the top-level package that a frame's code belongs to."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]
