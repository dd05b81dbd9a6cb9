"""Call sites: the innermost frame that belongs to the agent's code, not to agentobs or a library."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any

from replay.agent_code.project import project
from replay.agent_code.thread_stacks import outer_frames, thread_frames

OWN_PACKAGES = tuple(
    str(Path(__file__).resolve().parents[2] / name) + os.sep
    for name in ("agentobs", "replay", "exporters", "dashboards")
)
"""The folders of the packages of agentobs, whose frames do not belong to the agent."""
LIBRARIES = tuple(
    {
        str(Path(path).resolve()) + os.sep
        for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    }
)
FRAMES_MAX = 500
"""The maximum number of frames that are examined, from the innermost. Our choice."""
TASKS_MAX = 20
"""The maximum number of waiting tasks that are listed. Our choice."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the agent's code."""

    file: str
    """The path of the file; relative to the project directory if the file is inside that directory."""
    line: int
    """The line number, from 1."""
    function: str
    """The name of the function, with its class."""

    @property
    def text(self) -> str:
        """The place in a form that editors recognize, and the function."""
        return f"{self.file}:{self.line} in {self.function}"


def call_site() -> Site | None:
    """Return the innermost call site in the agent's code; None if unknown.

    The stack of a task contains only its own frames. If all of them belong to libraries, and exactly one other task of
    the loop waits in the agent's code, the work is attributed to that task.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None or _is_event_loop(frame.f_code):
            break
        if is_agents(frame.f_code.co_filename):
            return _site(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    sites = {site for _, site in waiting_tasks()}
    return sites.pop() if len(sites) == 1 else None


def waiting_tasks() -> list[tuple[str, Site]]:
    """Return the name and the call site of each task of the running loop that waits in the agent's code."""
    try:
        tasks, current = asyncio.all_tasks(), asyncio.current_task()
    except RuntimeError:
        return []
    found = []
    for task in tasks:
        site = _waits_at(task.get_coro()) if task is not current and not task.done() else None
        if site is not None:
            found.append((task.get_name(), site))
    return sorted(found, key=lambda each: (each[1].file, each[1].line, len(each[0]), each[0]))[
        :TASKS_MAX
    ]


def site_at(frame: FrameType) -> Site:
    """Return the code location of a frame."""
    return _site(frame.f_code, frame.f_lineno)


def dns_lookup_site() -> Site | None:
    """Return the call site of the task that is waiting for a DNS lookup in an event loop's thread pool.

    Returns None if there is no such call site, or if there are several.
    """
    try:
        tasks = list(
            getattr(asyncio.tasks, "_all_tasks", ())
        )  # asyncio.all_tasks returns the tasks of one loop
    except RuntimeError:  # another thread has just added a task to the set
        tasks = []
    chains = [list(suspended(task.get_coro())) for task in tasks if not task.done()]
    # A task that does not wait for the lookup yet is still on the stack of its thread.
    chains += [list(outer_frames(frame))[::-1] for frame in thread_frames().values()]
    found = {
        _innermost(chain)
        for chain in chains
        if any(frame.f_code.co_qualname == _DNS_LOOKUP for frame in chain)
    } - {None}
    return found.pop() if len(found) == 1 else None


_DNS_LOOKUP = "BaseEventLoop.getaddrinfo"
"""The coroutine of asyncio that runs a DNS lookup in a thread."""


def _innermost(frames: list[FrameType]) -> Site | None:
    """Return the innermost frame that belongs to the agent. `frames` starts with the outermost frame."""
    agent_frames = [frame for frame in frames if is_agents(frame.f_code.co_filename)]
    return _site(agent_frames[-1].f_code, agent_frames[-1].f_lineno) if agent_frames else None


def site_of(function: Callable[..., Any]) -> Site | None:
    """Return where a function is defined; None if it is not a Python function of the agent."""
    for _ in range(16):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        if inner is None:
            break
        function = inner
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        called = type(function).__dict__.get("__call__")
        code = getattr(called, "__code__", None)
    if not isinstance(code, CodeType) or not is_agents(code.co_filename):
        return None
    return _site(code, code.co_firstlineno)


def is_agents(file: str) -> bool:
    """Return whether a file belongs to the agent, not to agentobs or a library."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((*OWN_PACKAGES, *LIBRARIES))


def _is_event_loop(code: CodeType) -> bool:
    """Return whether a frame is the event loop that runs a task; the frames outside of it did not cause the call."""
    return code.co_name == "_run" and code.co_filename.endswith(
        ("asyncio/events.py", "asyncio\\events.py")
    )


def _waits_at(coroutine: Any) -> Site | None:
    """Return the innermost frame of a suspended coroutine that belongs to the agent; None if there is none."""
    found = None
    for frame in suspended(coroutine):
        if is_agents(frame.f_code.co_filename):
            found = _site(frame.f_code, frame.f_lineno)
    return found


def suspended(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of the coroutines that it awaits, the outermost first."""
    for _ in range(FRAMES_MAX):
        if isinstance(coroutine, CoroutineType):
            frame, coroutine = coroutine.cr_frame, coroutine.cr_await
        else:
            frame, coroutine = (
                getattr(coroutine, "gi_frame", None),
                getattr(coroutine, "gi_yieldfrom", None),
            )
        if frame is None:
            return
        yield frame


def _site(code: CodeType, line: int) -> Site:
    return Site(_short(code.co_filename), line, code.co_qualname.replace(".<locals>", ""))


def _short(file: str) -> str:
    try:
        return Path(file).relative_to(project()).as_posix()
    except (ValueError, OSError):
        return file
