"""Run each sync function in its own daemon thread.

In asyncio's thread pool, a function that never returns would occupy one of a few threads forever and block the exit of
the interpreter. Here, the caller can give up and abandon the thread. The number of abandoned threads is limited. After
a function has returned, its thread is reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from agentobs.runtime import process

T = TypeVar("T")

ABANDONED_MAX = 64
"""Maximum number of abandoned threads that are still running in this process. Our choice."""

IDLE_MAX = 16
"""Maximum number of idle threads. Our choice."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a thread, with the caller's context. Return its result or raise its exception.

    If the caller is cancelled, the thread is abandoned, because a thread cannot be stopped.

    Raises:
        RuntimeError: too many abandoned threads are still running.
    """
    abandoned = process.state(State).abandoned
    if abandoned >= ABANDONED_MAX:
        raise RuntimeError(f"{abandoned} abandoned calls are still running")
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()
    running = _RunningFunction()

    def run() -> Callable[[], object]:
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = context.run(work), None
        except BaseException as error:  # the caller that awaits the result raises it
            outcome = None, error
        running.end()
        return lambda: loop.call_soon_threadsafe(_set_outcome, ended, outcome)

    _dispatch(run)
    try:
        value, error = await ended
    except BaseException:
        running.give_up()
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # if there is no error, it is the result of the function


class _RunningFunction:
    """One function that runs in a thread."""

    def __init__(self) -> None:
        self._has_ended = self._is_abandoned = False

    def end(self) -> None:
        state = process.state(State)
        with state.lock:
            self._has_ended = True
            state.abandoned -= self._is_abandoned

    def give_up(self) -> None:
        state = process.state(State)
        with state.lock:
            self._is_abandoned = not self._has_ended
            state.abandoned += self._is_abandoned


Run = Callable[[], Callable[[], object]]
"""Runs a function, and returns a callable that reports the end of the function to the event loop."""


class State:
    """The threads of this process that run functions or are idle."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads."""
        self.idle: list[SimpleQueue[Run]] = []
        """The queues of idle threads. Appending to a list and popping from it are atomic."""
        self.abandoned = 0
        """The number of abandoned functions that are still running."""
        self.lock = threading.Lock()


def _reset_after_fork() -> None:
    """Reset the state in a forked process, because only the parent has the threads."""
    process.state(State).reset()


os.register_at_fork(after_in_child=_reset_after_fork)


def _dispatch(run: Run) -> None:
    """Pass a function to an idle thread, or to a new thread if none is idle."""
    state = process.state(State)
    try:
        state.idle.pop().put(run)
    except IndexError:
        inbox: SimpleQueue[Run] = SimpleQueue()
        inbox.put(run)
        threading.Thread(target=_serve, args=[inbox], name="agentobs-tool", daemon=True).start()


def _serve(inbox: SimpleQueue[Run]) -> None:
    state = process.state(State)
    is_waiting = True
    while is_waiting:
        report_end = inbox.get()()
        is_waiting = len(state.idle) < IDLE_MAX
        if is_waiting:
            # Before reporting the end, so that the next call finds this thread.
            state.idle.append(inbox)
        with contextlib.suppress(RuntimeError):  # the event loop was closed
            report_end()
        del report_end  # it references the result, which may be large


def _set_outcome(
    ended: asyncio.Future[tuple[T | None, BaseException | None]],
    outcome: tuple[T | None, BaseException | None],
) -> None:
    if not ended.done():
        ended.set_result(outcome)
