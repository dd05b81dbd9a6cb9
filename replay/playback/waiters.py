"""Waiters: the waiting threads and tasks of the agent, where in its code they wait, and what they wait for.

All information is read from frames, without running code of the agent, so another thread can read it at any time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from replay.agent_code.call_sites import is_agents, site_at, suspended
from replay.agent_code.thread_stacks import native_id, outer_frames, python_threads, thread_frames
from replay.divergence.divergence_facts import Waiting
from replay.divergence.rendering import COMPUTES
from replay.virtual_time.thread_states import OWN_THREADS, is_running

WAITERS_MAX = 20
"""The maximum number of waiters that a report describes. Our choice."""

NAMES = {
    "Thread.join": "the end of a thread",
    "_ThreadHandle.join": "the end of a thread",
    "Future.result": "a future",
    "Future.exception": "a future",
    "as_completed": "futures",
    "wait": "futures or tasks",
    "_wait": "futures or tasks",
    "Queue.get": "a queue",
    "Queue.put": "a queue",
    "Queue.join": "a queue",
    "Event.wait": "an event",
    "Semaphore.acquire": "a semaphore",
    "Barrier.wait": "a barrier",
    "Lock.acquire": "a lock",
    "RLock.acquire": "a lock",
    "Condition.wait": "a condition",
    "Process.wait": "a child process",
    "Process.communicate": "a child process",
    "Popen.wait": "a child process",
    "Popen.communicate": "a child process",
    "sleep": "a sleep",
    "_sleep": "a sleep",
    "to_thread": "a thread",
    "BaseEventLoop.run_in_executor": "a thread",
    "hold": "earlier recorded responses to end",
    "hold_async": "earlier recorded responses to end",
    "StreamReader.read": "a pipe or a connection",
    "StreamReader.readline": "a pipe or a connection",
    "MemoryObjectReceiveStream.receive": "a stream",
    "MemoryReceiveChannel.receive": "a channel",
    "TaskGroup.__aexit__": "the tasks of its group",
}
"""What a function waits for, by its qualified name. The outermost function that the agent's code calls is looked up."""
MODULES = {
    "subprocess": "a child process",
    "socket": "a connection",
    "ssl": "a connection",
    "selectors": "a file or a connection",
    "multiprocessing": "another process",
}
"""What a package waits for, if no function of the call is known."""


def waiters(
    earlier_threads: Iterable[threading.Thread], loops: Iterable[asyncio.AbstractEventLoop]
) -> tuple[Waiting, ...]:
    """Return the threads and tasks that run the agent's code, each with what it waits for.

    Args:
        earlier_threads: the threads that existed before the replay and do not work for the agent.
        loops: the event loops whose tasks are the agent's.
    """
    open_loops = [loop for loop in loops if not loop.is_closed()]
    found = [*_threads(frozenset(earlier_threads), open_loops), *_tasks(open_loops)]
    return tuple(found[:WAITERS_MAX])


def _threads(
    earlier_threads: frozenset[threading.Thread], loops: list[asyncio.AbstractEventLoop]
) -> Iterable[Waiting]:
    frames, here = thread_frames(), threading.get_ident()
    in_loops = {getattr(loop, "_thread_id", None) for loop in loops}
    for ident, thread in python_threads().items():
        is_other = thread in earlier_threads and thread is not threading.main_thread()
        if ident == here or is_other or thread.name in OWN_THREADS or ident not in frames:
            continue
        frame = frames[ident]
        if ident in in_loops and _runs_selector(frame):
            continue  # the tasks of the thread wait, not the thread itself
        chain = list(outer_frames(frame))
        yield from _waiting(f"thread {thread.name}", chain, _wait_of_thread(thread, frame))


def _runs_selector(frame: FrameType) -> bool:
    names = [each.f_code.co_name for each in outer_frames(frame)]
    return "_run_once" in names and not any(
        name == "_run" for name in names[: names.index("_run_once")]
    )


def _tasks(loops: list[asyncio.AbstractEventLoop]) -> Iterable[Waiting]:
    for loop in loops:
        try:
            tasks = asyncio.all_tasks(loop)
        except RuntimeError:  # the thread of the loop is adding tasks at this moment
            continue
        for task in sorted(tasks, key=lambda each: (len(each.get_name()), each.get_name())):
            if not task.done():
                chain = list(suspended(task.get_coro()))[::-1]
                yield from _waiting(f"task {task.get_name()}", chain, _wait_of_task(task))


def _waiting(name: str, chain: list[FrameType], default: str) -> Iterable[Waiting]:
    """Yield a waiter if one of its frames is in the agent's code; the innermost frame is the first one."""
    at = next((n for n, each in enumerate(chain) if is_agents(each.f_code.co_filename)), None)
    if at is None:
        return
    for frame in reversed(chain[:at]):
        if (subject := NAMES.get(frame.f_code.co_qualname)) is not None:
            yield Waiting(name, site_at(chain[at]), subject)
            return
    packages = [str(each.f_globals.get("__name__")).partition(".")[0] for each in chain[:at]]
    subject = next((MODULES[each] for each in packages if each in MODULES), default)
    yield Waiting(name, site_at(chain[at]), subject)


def _wait_of_thread(thread: threading.Thread, frame: FrameType) -> str:
    """Return what a thread waits for if no known function shows it."""
    if is_running(native_id(thread)):
        return COMPUTES
    return "a lock, or a call outside of Python" if is_agents(frame.f_code.co_filename) else ""


def _wait_of_task(task: asyncio.Task[Any]) -> str:
    awaited = getattr(task, "_fut_waiter", None)
    if isinstance(awaited, asyncio.Task):
        return f"task {awaited.get_name()}"
    return "" if awaited is None else "a future"
