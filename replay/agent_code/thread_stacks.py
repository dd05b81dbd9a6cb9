"""The stacks of all threads of the process, read without executing other code.

`sys._current_frames` allocates memory while it holds a lock of the interpreter. In CPython up to 3.11.7 and 3.12.0, the
garbage collector may run at that point and a finalizer may release the GIL. If another thread ends at that moment, that
thread waits for the lock while it holds the GIL, and the process is in a deadlock (gh-106883). So only this module
calls the function, with the garbage collector switched off.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_lock = threading.RLock()
"""Held during the call, so that no concurrent caller switches the collector on. It is reentrant for signal handlers."""


def thread_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by thread identifier.

    The garbage collector is switched off during the call.
    """
    with _lock:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if was_on:
                gc.enable()


# Without this, a fork during a call in another thread would leave the child with a held lock and without collector.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def python_threads() -> dict[int, threading.Thread]:
    """Return the threads that the `threading` module knows, by identifier.

    Unlike `threading.enumerate`, this function takes no lock, so signal handlers and finalizers may call it.
    """
    active: dict[int, threading.Thread] = threading._active.copy()  # type: ignore[attr-defined]
    return active


def native_id(thread: threading.Thread) -> int:
    """Return the ID of a thread in the operating system. The result is also correct in a forked process.

    After a fork, `Thread.native_id` of the main thread is still the ID in the parent (CPython 3.11). On Linux, the
    native ID of the main thread is the process ID.
    """
    if thread is threading.main_thread() and sys.platform == "linux":
        return os.getpid()
    return thread.native_id or 0


def outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def package_of(frame: FrameType) -> str:
    """Return the name of the top-level package of a frame's code."""
    return str(frame.f_globals.get("__name__")).partition(".")[0]
