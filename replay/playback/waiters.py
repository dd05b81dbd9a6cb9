"""Waiters: the threads and tasks of the agent that wait, where in its code, and for what.

Everything is read from frames, without running code of the agent, so that a watching thread can do it at any time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from replay.agent_code.call_sites import is_agents, site_at, suspended
from replay.agent_code.thread_stacks import native_id, outward, python_threads, thread_frames
from replay.divergence.divergence_facts import Waiting
from replay.divergence.rendering import COMPUTES
from replay.virtual_time.thread_states import OURS, is_running

WAITERS_MAX = 20
"""How many waiters a report describes. Our choice."""

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
    "hold": "its turn to get a recorded answer",
    "hold_async": "its turn to get a recorded answer",
    "StreamReader.read": "a pipe or a connection",
    "StreamReader.readline": "a pipe or a connection",
    "MemoryObjectReceiveStream.receive": "a stream",
    "MemoryReceiveChannel.receive": "a channel",
    "TaskGroup.__aexit__": "the tasks of its group",
}
"""What a function waits for, by its qualified name; the outermost function that the agent's code calls counts."""
MODULES = {
    "subprocess": "a child process",
    "socket": "a connection",
    "ssl": "a connection",
    "selectors": "a file or a connection",
    "multiprocessing": "another process",
}
"""What a package waits for, if no function of the call is known."""


def waiters(
    before: Iterable[threading.Thread], loops: Iterable[asyncio.AbstractEventLoop]
) -> tuple[Waiting, ...]:
    """Return the threads and tasks that are in the agent's code, each with what it waits for.

    Args:
        before: threads that existed before the replay and do not work for the agent.
        loops: the event loops whose tasks are the agent's.
    """
    known = [loop for loop in loops if not loop.is_closed()]
    found = [*_threads(frozenset(before), known), *_tasks(known)]
    return tuple(found[:WAITERS_MAX])


def _threads(
    before: frozenset[threading.Thread], loops: list[asyncio.AbstractEventLoop]
) -> Iterable[Waiting]:
    frames, here = thread_frames(), threading.get_ident()
    in_loops = {getattr(loop, "_thread_id", None) for loop in loops}
    for ident, thread in python_threads().items():
        is_other = thread in before and thread is not threading.main_thread()
        if ident == here or is_other or thread.name in OURS or ident not in frames:
            continue
        frame = frames[ident]
        if ident in in_loops and _runs_selector(frame):
            continue  # its tasks wait, not the thread
        chain = list(outward(frame))
        yield from _waiting(f"thread {thread.name}", chain, _in_a_call(thread, frame))


def _runs_selector(frame: FrameType) -> bool:
    names = [each.f_code.co_name for each in outward(frame)]
    return "_run_once" in names and not any(
        name == "_run" for name in names[: names.index("_run_once")]
    )


def _tasks(loops: list[asyncio.AbstractEventLoop]) -> Iterable[Waiting]:
    for loop in loops:
        try:
            tasks = asyncio.all_tasks(loop)
        except RuntimeError:  # its thread adds tasks at this moment
            continue
        for task in sorted(tasks, key=lambda each: (len(each.get_name()), each.get_name())):
            if not task.done():
                chain = list(suspended(task.get_coro()))[::-1]
                yield from _waiting(f"task {task.get_name()}", chain, _of_future(task))


def _waiting(name: str, chain: list[FrameType], otherwise: str) -> Iterable[Waiting]:
    """Yield a waiter if one of its frames is in the agent's code. The frames are given innermost first."""
    at = next((n for n, each in enumerate(chain) if is_agents(each.f_code.co_filename)), None)
    if at is None:
        return
    for frame in reversed(chain[:at]):
        if (what := NAMES.get(frame.f_code.co_qualname)) is not None:
            yield Waiting(name, site_at(chain[at]), what)
            return
    packages = [str(each.f_globals.get("__name__")).partition(".")[0] for each in chain[:at]]
    what = next((MODULES[each] for each in packages if each in MODULES), otherwise)
    yield Waiting(name, site_at(chain[at]), what)


def _in_a_call(thread: threading.Thread, frame: FrameType) -> str:
    """Return what a thread waits for if its innermost frame is the agent's: a lock, or a call outside of Python."""
    if is_running(native_id(thread)):
        return COMPUTES
    return "a lock, or a call outside of Python" if is_agents(frame.f_code.co_filename) else ""


def _of_future(task: asyncio.Task[Any]) -> str:
    waits_for = getattr(task, "_fut_waiter", None)
    if isinstance(waits_for, asyncio.Task):
        return f"task {waits_for.get_name()}"
    return "" if waits_for is None else "a future"
