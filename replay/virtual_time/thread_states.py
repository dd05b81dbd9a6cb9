"""Thread states: whether anything in the process can still run, apart from timers.

Virtual time may jump only if nothing else can run. This is decided from what the operating system knows about each
thread, not from the calls of the agent's code. On Linux, `/proc/self/task/<id>/syscall` names the system call that a
thread is blocked in. A thread that waits for a lock without a timeout can only be woken by another thread. A thread
that waits for the GIL waits with a timeout, so the two are never confused. Elsewhere (macOS, Windows, a `/proc` that
does not show system calls) a process counts as blocked after it has used no CPU time for a while, and no thread has
moved on in its code.

The result is one of three:

- `running`: a thread computes, or is about to.
- `outside`: all threads are blocked, but one of them waits for something real that may happen by itself: a child
  process, a pipe, a socket, a wait with a timeout that is not virtual, an alarm of the operating system.
- `blocked`: only a timer can wake a thread, or nothing can.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Literal

from agentobs import world
from agentobs.determinism.patches import UNPATCHED_PACKAGES
from agentobs.runtime import process
from replay.agent_code.thread_stacks import (
    native_id,
    outer_frames,
    package_of,
    python_threads,
    thread_frames,
)

Activity = Literal["running", "outside", "blocked"]
"""Whether anything in the process can still run."""
ThreadState = Activity | Literal["waking"]
"""Whether one thread can still run; `waking` means that it does not work for the agent and may have been woken by a
timer.
"""
Parking = Literal["lock", "loop", "loop with files", "held"]
"""How a thread that has announced its wait waits: for a lock, in an event loop without open files, in an event loop
with open files, or with a held response.
"""

REAL_SLEEP = time.sleep
"""`time.sleep` as it was before any replay."""
CLOCK, WATCH, CHILDREN = (
    "agentobs-replay-clock",
    "agentobs-replay-watch",
    "agentobs-replay-children",
)
"""The names of the threads that run the clock, watch the deadline, and answer child processes."""
PROBE = "agentobs-replay-probe"
OWN_THREADS = frozenset({CLOCK, WATCH, CHILDREN, PROBE, "agentobs-recorder", "agentobs-sync"})
"""The names of the threads of agentobs that do not work for the agent. The agent loop runs tools in other threads."""
AGENT_LOOP = "agentobs.agent."
"""The prefix of the modules of the agent loop of agentobs, whose threads work for the agent."""
TASKS = Path("/proc/self/task")
FUTEX = {"x86_64": 202, "aarch64": 98}
"""The system call that waits for a lock (Linux, asm/unistd.h), by machine."""
FUTEX_WAIT_PRIVATE, CONTENDED = "0x80", "0x2"
"""The operation (Linux, linux/futex.h) and the expected value with which glibc waits for a mutex that is locked (glibc
2.36, nptl/lowlevellock.c).
"""
ACCEPT = {"x86_64": (43, 288), "aarch64": (202, 242)}
"""The system calls `accept` and `accept4`, by machine. In a replay only child processes connect, and they are counted
separately.
"""
POOL_WORKERS = frozenset({("trio._core._thread_cache", "_work")})
"""Functions in which an idle worker of a thread pool waits with a timeout."""
GIL_MARGIN_NS = 3_000_000
"""If a wait with a timeout lasts longer than the interpreter's switch interval plus this margin, it is not a wait for
the GIL. Our choice.
"""
QUIET_NS = 10_000_000
"""How long a process must be idle to count as blocked, if the system does not show what its threads wait for. Our
choice.
"""
STILL_CPU_NS, STILL_CPU = 2_000_000, 0.1
"""The CPU time that threads of agentobs may use during that time: a fixed amount, plus a share of the time. Our choice.
"""
UNKNOWN_NS = 500_000_000
"""The idle time that is needed if a thread is in a call that is not known to wait for a lock. Our choice."""
WAITING_MODULES = frozenset(
    {"threading", "queue", "concurrent.futures.thread", "concurrent.futures._base"}
)
OUTSIDE_MODULES = frozenset(
    {"subprocess", "selectors", "select", "socket", "ssl", "multiprocessing", "asyncio"}
)


class Children:
    """The child processes that the agent started."""

    def __init__(self) -> None:
        self.children: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def note_child(child: subprocess.Popen[bytes]) -> None:
    """Remember a child process that the agent started."""
    process.state(Children).children.add(child)


class ThreadStates:
    """Reports whether anything in this process can still run; created when a replay opens."""

    def __init__(self) -> None:
        """Remember the existing threads. Except the caller, they work for the agent only if they run its code later."""
        here = threading.get_ident()
        frames = thread_frames()
        self._earlier = weakref.WeakSet(
            thread for ident, thread in python_threads().items() if ident != here
        )
        self._first_positions = {
            ident: _position(frame) for ident, frame in frames.items() if ident != here
        }
        self._timed_waits: dict[int, tuple[str, str, int]] = {}
        """For each thread in a wait with a timeout: system call, context switches, and the time of the first check."""
        self._alarm = _alarm_handler()
        self._can_see_calls = _shows_system_calls() and _may_read_calls()
        self.is_guess = False
        """Whether the last result was `running` only because threads that are not the agent's may have been woken."""
        self.switch_counts: object = None
        """A value that changes whenever a thread of the agent has run, except event loops and threads with a held
        response; None if the system does not show this.
        """
        self._last_movement: dict[int, tuple[object, int, int]] = {}
        """For each thread that checks: the positions of the agent's threads, the time since which these have been the
        same, and the CPU time at that moment.
        """

    def is_agent_thread(self, frame: FrameType | None) -> bool:
        """Return whether the calling thread works for the agent; `frame` is its current frame."""
        thread = python_threads().get(threading.get_ident())
        if thread is None or thread.name in OWN_THREADS:
            return False
        return thread not in self._earlier or _runs_agent_code(frame)

    def activity(self, parked: Mapping[int, Parking]) -> Activity:
        """Return whether anything can still run, apart from the calling thread.

        Args:
            parked: the threads that have announced how they wait, by identity.
        """
        try:
            found = (
                self._observed_activity(parked)
                if self._can_see_calls
                else self._estimated_activity(parked)
            )
        except OSError:  # for example, after the process has changed its user
            self._can_see_calls = False
            found = self._estimated_activity(parked)
        if found == "blocked" and (_has_children() or _alarm_handler() != self._alarm):
            return "outside"
        return found

    def has_foreign_threads(self) -> bool:
        """Return whether there are threads whose waits cannot be known.

        Such threads were started in other languages, or by code of the agent that does not use `threading`. A thread
        that waits for a lock without a timeout, such as an idle worker of a library, does not count, because nothing
        happens in it by itself.
        """
        if not self._can_see_calls:
            return False
        known, frames = python_threads(), thread_frames()
        unlisted = [frame for ident, frame in frames.items() if ident not in known]
        natives = {native_id(thread) for thread in known.values()}
        unknown = [
            native
            for native in _tasks()
            if native not in natives and not _is_locked(_system_call(native))
        ]
        return len(unknown) > len(unlisted) or any(map(_runs_agent_code, unlisted))

    def _grouped_threads(
        self,
    ) -> tuple[dict[int, threading.Thread], dict[int, threading.Thread], set[int]]:
        """Return three groups: the agent's threads by identity, others by native ID, native IDs of agentobs threads."""
        here = threading.get_ident()
        agents: dict[int, threading.Thread] = {}
        others: dict[int, threading.Thread] = {}
        ours: set[int] = set()
        frames: dict[int, FrameType] | None = None
        for ident, thread in python_threads().items():
            if ident == here or thread.name in OWN_THREADS:
                ours.add(native_id(thread))
            elif thread not in self._earlier:
                agents[ident] = thread
            else:
                frames = thread_frames() if frames is None else frames
                frame = frames.get(ident)
                has_moved = frame is not None and self._first_positions.get(ident) != _position(
                    frame
                )
                if has_moved and _runs_agent_code(frame):
                    agents[ident] = thread
                else:
                    others[native_id(thread)] = thread
        return agents, others, ours

    def _observed_activity(self, parked: Mapping[int, Parking]) -> Activity:
        """Return the activity according to the operating system.

        The threads are checked twice, because a thread may wake or start another one during the first check. If a
        thread has not run since, its system call is the same.
        """
        self.is_guess = False
        agents, _, ours = self._grouped_threads()
        by_native = {native_id(thread): ident for ident, thread in agents.items()}
        found: Activity = "blocked"
        first: dict[int, str | None] = {}
        switch_counts: dict[int, str | None] = {}
        for native in _tasks():
            if native in ours:
                continue
            ident = by_native.get(native)
            switches, call = _switches(native), _system_call(native)
            parking = None if ident is None else parked.get(ident)
            state = self._state_of(native, call, switches, ident, parking)
            if state == "running":
                self.is_guess = False
                return state
            if state == "outside":
                found = state
            self.is_guess |= state == "waking"
            first[native] = switches
            if ident is not None and parking in (None, "lock"):
                switch_counts[native] = switches
        self.switch_counts = switch_counts
        second = {each: _switches(each) for each in _tasks() if each not in ours}
        return found if second == first and not self.is_guess else "running"

    def _state_of(
        self,
        native: int,
        call: str | None,
        switches: str | None,
        ident: int | None,
        parking: Parking | None,
    ) -> ThreadState:
        if call is None:
            return "blocked"  # the thread has ended
        if switches is None:
            return "running"
        number = call.partition(" ")[0]
        if number in ("running", "-1"):
            return "running"
        machine = platform.machine()
        if _waits_for_mutex(call):
            return "waking" if ident is None else "running"
        if _is_locked(call):
            return "blocked"
        if int(number) == FUTEX[machine]:
            if self._is_brief(native, call, switches):
                return "waking" if ident is None else "running"
            return "blocked" if ident is None or _is_idle_worker(ident) else "outside"
        self._timed_waits.pop(native, None)
        if ident is None or parking in ("loop", "held") or int(number) in ACCEPT[machine]:
            return "blocked"
        return "outside"

    def _is_brief(self, native: int, call: str, switches: str) -> bool:
        """Return whether a wait with a timeout is still so short that it may be for the GIL."""
        now = world.monotonic()
        known = self._timed_waits.get(native)
        if known is None or known[:2] != (call, switches):
            self._timed_waits[native] = call, switches, now
            return True
        return now - known[2] < sys.getswitchinterval() * 1e9 + GIL_MARGIN_NS

    def _estimated_activity(self, parked: Mapping[int, Parking]) -> Activity:
        """Return the activity according to frames and CPU time."""
        agents, _, _ = self._grouped_threads()
        frames = {i: f for i, f in thread_frames().items() if i in agents}
        positions = {
            i: _position(f) for i, f in frames.items() if parked.get(i) not in ("loop", "held")
        }
        now, here = world.monotonic(), threading.get_ident()
        cpu = world.process_cpu() - world.thread_cpu()  # of all threads except this one
        before, since, used = self._last_movement.get(here, (None, 0, 0))
        if before != positions or cpu - used > STILL_CPU_NS + (now - since) * STILL_CPU:
            self._last_movement[here] = positions, now, cpu
            return "running"
        still_ns = now - since
        unparked = [frame for ident, frame in frames.items() if ident not in parked]
        modules = {str(frame.f_globals.get("__name__")) for frame in unparked}
        if still_ns < QUIET_NS:
            return "running"
        if "loop with files" in parked.values() or any(
            name.partition(".")[0] in OUTSIDE_MODULES for name in modules
        ):
            return "outside"
        is_known = modules <= WAITING_MODULES
        return "blocked" if is_known or still_ns >= UNKNOWN_NS else "running"


def is_running(native: int) -> bool:
    """Return whether the thread with a native identity runs or is ready; False if the system does not show it."""
    try:
        return _shows_system_calls() and (
            _switches(native) is None or (_system_call(native) or "").startswith("running")
        )
    except OSError:
        return False


def _position(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _runs_agent_code(frame: FrameType | None) -> bool:
    return any(
        package_of(each) not in UNPATCHED_PACKAGES
        or str(each.f_globals.get("__name__")).startswith(AGENT_LOOP)
        for each in outer_frames(frame)
    )


def _is_idle_worker(ident: int) -> bool:
    frame = thread_frames().get(ident)
    if frame is None:
        return False
    return (str(frame.f_globals.get("__name__")), frame.f_code.co_name) in POOL_WORKERS


@functools.cache
def _shows_system_calls() -> bool:
    """Return whether the system names the system calls that threads of this process are blocked in."""
    if platform.machine() not in FUTEX or not sys.platform.startswith("linux"):
        return False
    blocked = threading.Lock()
    blocked.acquire()
    probe = threading.Thread(target=blocked.acquire, name=PROBE, daemon=True)
    probe.start()
    try:
        for _ in range(50):
            if _is_locked(_system_call(probe.native_id or 0)):
                return True
            REAL_SLEEP(0.0005)
        return False
    except OSError:
        return False
    finally:
        blocked.release()
        probe.join()


def _is_locked(call: str | None) -> bool:
    """Return whether a system call waits for a lock without a timeout."""
    fields = (call or "").split()
    return len(fields) > 4 and fields[0] == str(FUTEX[platform.machine()]) and fields[4] == "0x0"


def _waits_for_mutex(call: str) -> bool:
    """Return whether a system call waits for a mutex of glibc (`__lll_lock_wait`), which is never held for long.

    The locks of Python are semaphores, but a mutex protects the state of the GIL. If several threads wait for it, only
    one is woken, which wakes the next one as soon as it is scheduled. Until then, the others look blocked although they
    are about to run.
    """
    return _is_locked(call) and call.split()[2:4] == [FUTEX_WAIT_PRIVATE, CONTENDED]


def _may_read_calls() -> bool:
    """Return whether this process may read its own system calls. It may not after it has changed its user."""
    try:
        return _system_call(threading.get_native_id()) is not None
    except OSError:
        return False


def _tasks() -> list[int]:
    """Return the native identities of all threads."""
    names = os.listdir(TASKS)  # noqa: PTH208 - pathlib would double the time of each check
    return [int(name) for name in names]


def _system_call(native: int) -> str | None:
    """Return the line of a thread's system call; None if the thread has ended.

    Raises:
        OSError: this process may not read it.
    """
    return _read(f"/proc/self/task/{native}/syscall")


def _switches(native: int) -> str | None:
    """Return how many context switches a thread has had, as text; None if the thread runs or is about to run.

    The number changes whenever the thread has run. The state is checked as well, because a thread that another CPU is
    waking is still in its system call (Linux, TASK_WAKING in include/linux/sched.h).
    """
    status = _read(f"/proc/self/task/{native}/status") or ""
    if status.partition("\nState:")[2].lstrip().startswith("R"):
        return None
    return status[status.find("voluntary_ctxt_switches") :]


def _read(path: str) -> str | None:
    """Return the contents of a file of a thread; None if the thread has ended.

    Raises:
        OSError: this process may not read it.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(file, 4096).decode("ascii", "replace").strip()
    except ProcessLookupError:
        return None
    finally:
        os.close(file)


def _has_children() -> bool:
    """Return whether a child process that the agent started is running."""
    known = process.state(Children)
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        except OSError:
            pass
    popen = {child.pid for child in list(known.children) if child.returncode is None}
    return any(map(_is_alive, popen | set(_forked_processes())))


def _forked_processes() -> Iterable[int]:
    """Return the processes that `multiprocessing` has started and not joined."""
    module = sys.modules.get("multiprocessing.process")
    known = set(getattr(module, "_children", ()))
    return {each._popen.pid for each in known if getattr(each, "_popen", None) is not None}


def _is_alive(pid: int) -> bool:
    if not hasattr(os, "waitid"):
        return True
    with contextlib.suppress(OSError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def _alarm_handler() -> object:
    """Return the handler of the alarm of the operating system; None if no alarm is set."""
    if not hasattr(signal, "getitimer") or not signal.getitimer(signal.ITIMER_REAL)[0]:
        return None
    return signal.getsignal(signal.SIGALRM)
