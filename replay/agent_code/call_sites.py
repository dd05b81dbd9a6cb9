"""Where in the agent's own code something happens: the innermost frame that is neither ours nor a library's."""

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
from replay.agent_code.thread_stacks import outward, thread_frames

OURS = tuple(
    str(Path(__file__).resolve().parents[2] / name) + os.sep
    for name in ("agentobs", "replay", "exporters", "dashboards")
)
"""The folders of our packages, whose frames are not the agent's."""
LIBRARIES = tuple(
    {
        str(Path(path).resolve()) + os.sep
        for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    }
)
FRAMES_MAX = 500
"""How many frames are looked at, from the innermost. Our choice."""
TASKS_MAX = 20
"""How many waiting tasks are listed. Our choice."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the agent's code."""

    file: str
    """Its file; relative to the project directory if it lies under it."""
    line: int
    """Its line, from 1."""
    function: str
    """The function, with its class."""

    @property
    def text(self) -> str:
        """The place as editors take it, and the function."""
        return f"{self.file}:{self.line} in {self.function}"


def call_site() -> Site | None:
    """Return the innermost frame of the agent's code that led here; None if unknown.

    A task has only its own frames. Where those are all a library's, the one task of the loop that waits in the agent's
    code, if it is the only one, is the one that the work is done for.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None or _is_loops(frame.f_code):
            break
        if is_agents(frame.f_code.co_filename):
            return _site(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    sites = {site for _, site in waiting_tasks()}
    return sites.pop() if len(sites) == 1 else None


def waiting_tasks() -> list[tuple[str, Site]]:
    """Return the tasks of the running loop that wait in the agent's code, but for the one that runs now, by name."""
    try:
        tasks, here = asyncio.all_tasks(), asyncio.current_task()
    except RuntimeError:
        return []
    found = []
    for task in tasks:
        site = _waits_at(task.get_coro()) if task is not here and not task.done() else None
        if site is not None:
            found.append((task.get_name(), site))
    return sorted(found, key=lambda each: (each[1].file, each[1].line, len(each[0]), each[0]))[
        :TASKS_MAX
    ]


def site_at(frame: FrameType) -> Site:
    """Return the code location of a frame."""
    return _site(frame.f_code, frame.f_lineno)


def looking_up() -> Site | None:
    """Return where the one task is, of any event loop, for which a thread of that loop looks a name up."""
    try:
        tasks = list(getattr(asyncio.tasks, "_all_tasks", ()))  # asyncio.all_tasks is of one loop
    except RuntimeError:  # another thread has just begun one
        tasks = []
    chains = [list(suspended(task.get_coro())) for task in tasks if not task.done()]
    # One that has not come to wait for it yet is where its thread is.
    chains += [list(outward(frame))[::-1] for frame in thread_frames().values()]
    found = {
        _innermost(chain)
        for chain in chains
        if any(frame.f_code.co_qualname == _LOOKS_UP for frame in chain)
    } - {None}
    return found.pop() if len(found) == 1 else None


_LOOKS_UP = "BaseEventLoop.getaddrinfo"
"""The coroutine of asyncio that has a thread look a name up."""


def _innermost(frames: list[FrameType]) -> Site | None:
    """Return the innermost of some frames, outermost first, that is the agent's."""
    own = [frame for frame in frames if is_agents(frame.f_code.co_filename)]
    return _site(own[-1].f_code, own[-1].f_lineno) if own else None


def site_of(function: Callable[..., Any]) -> Site | None:
    """Return where a function is written; None where it is not Python, or not the agent's."""
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
    """Return whether a file is the agent's: neither ours nor a library's."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((*OURS, *LIBRARIES))


def _is_loops(code: CodeType) -> bool:
    """Return whether a frame is that of an event loop which runs a task: what lies beyond has not led here."""
    return code.co_name == "_run" and code.co_filename.endswith(
        ("asyncio/events.py", "asyncio\\events.py")
    )


def _waits_at(coroutine: Any) -> Site | None:
    """Return where a suspended coroutine waits: the innermost of its frames that is the agent's."""
    found = None
    for frame in suspended(coroutine):
        if is_agents(frame.f_code.co_filename):
            found = _site(frame.f_code, frame.f_lineno)
    return found


def suspended(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of those that it awaits."""
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
