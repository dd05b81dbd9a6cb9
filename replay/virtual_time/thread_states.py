"""Thread states: whether anything in the process can still run, apart from timers.

Virtual time jumps only if nothing else can run, so this is decided from what the operating system knows about each
thread, not from the calls of the agent's code. On Linux `/proc/self/task/<id>/syscall` names the system call that a
thread is blocked in. A thread that waits for a lock without a timeout can only be woken by another thread. A thread
that waits for the GIL waits with a timeout, so the two are never confused. Elsewhere (macOS, Windows, a `/proc` that
does not show system calls) a process counts as blocked after it has used no CPU time and moved no frame for a while.

Three answers are possible:

- `running`: a thread computes, or is about to.
- `outside`: all threads are blocked, but one of them waits for something real that may happen by itself: a child
  process, a pipe, a socket, a wait with a timeout that is not virtual, an alarm of the operating system.
- `blocked`: only a timer, or nothing at all, can wake a thread.
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
from agentobs.determinism.patches import LEFT_ALONE
from agentobs.runtime import process
from replay.agent_code.thread_stacks import (
    native_id,
    outward,
    package_of,
    python_threads,
    thread_frames,
)

Activity = Literal["running", "outside", "blocked"]
"""Whether anything in the process can still run."""
State = Activity | Literal["waking"]
"""The same of one thread; `waking` is one that does nothing for the agent and may have been woken by a timer."""
Parking = Literal["lock", "loop", "loop with files", "held"]
"""How a thread waits that has announced its wait: for a lock, in an event loop that has nothing or something open, or
for its turn to hand over a recorded answer."""

REAL_SLEEP = time.sleep
"""`time.sleep` as it was before any replay."""
CLOCK, WATCH, CHILDREN = (
    "agentobs-replay-clock",
    "agentobs-replay-watch",
    "agentobs-replay-children",
)
"""The names of the threads that run the clock, watch the deadline, and answer child processes."""
PROBE = "agentobs-replay-probe"
OURS = frozenset({CLOCK, WATCH, CHILDREN, PROBE, "agentobs-recorder", "agentobs-sync"})
"""The names of our own threads that do nothing for the agent; tools of our agent loop run in others."""
AGENT_LOOP = "agentobs.agent."
"""The modules of our agent loop, whose threads work for the agent."""
TASKS = Path("/proc/self/task")
FUTEX = {"x86_64": 202, "aarch64": 98}
"""The system call that waits for a lock (Linux, asm/unistd.h), by machine."""
ACCEPT = {"x86_64": (43, 288), "aarch64": (202, 242)}
"""`accept` and `accept4`: in a replay only child processes connect, and they are counted separately."""
POOL_WORKERS = frozenset({("trio._core._thread_cache", "_work")})
"""Functions in which an idle worker of a thread pool waits with a timeout."""
SETTLED_NS = 3_000_000
"""A wait with a timeout that lasts this much longer than the switch interval of the interpreter is not for the GIL.
Our choice."""
QUIET_NS = 10_000_000
"""How long a process must be idle to count as blocked if the system does not show what threads wait for. Our choice."""
STILL_CPU_NS, STILL_CPU = 2_000_000, 0.1
"""The CPU time that our own threads may use meanwhile: a fixed amount, and a share of the time. Our choice."""
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


def started(child: subprocess.Popen[bytes]) -> None:
    """Note a child process that the agent started."""
    process.part(Children).children.add(child)


class ThreadStates:
    """Reports whether anything in this process can still run; created when a replay opens."""

    def __init__(self) -> None:
        """Remember the existing threads; none of them works for the agent at first, except the caller."""
        here = threading.get_ident()
        frames = thread_frames()
        self._before = weakref.WeakSet(
            thread for ident, thread in python_threads().items() if ident != here
        )
        self._stood = {ident: _position(frame) for ident, frame in frames.items() if ident != here}
        self._timed: dict[int, tuple[str, str, int]] = {}
        self._alarm = _alarm_handler()
        self._is_shown = _shows_system_calls() and _may_look()
        self.is_guess = False
        """Whether the last answer was `running` only because threads of others may have been woken."""
        self.moves: object = None
        """Changes whenever a thread of the agent has run that is neither an event loop nor holds a recorded answer; it
        is None if the system does not show it."""
        self._still: dict[int, tuple[object, int, int]] = {}
        """For each thread that looks: the frames of all other threads, since when, and their CPU time then."""

    def is_agents(self, frame: FrameType | None) -> bool:
        """Return whether the calling thread works for the agent; `frame` is its current frame."""
        thread = python_threads().get(threading.get_ident())
        if thread is None or thread.name in OURS:
            return False
        return thread not in self._before or _runs_agent_code(frame)

    def activity(self, parked: Mapping[int, Parking]) -> Activity:
        """Return whether anything can still run, apart from the calling thread.

        Args:
            parked: the threads that have announced how they wait, by identity.
        """
        try:
            found = self._shown(parked) if self._is_shown else self._guessed(parked)
        except OSError:  # such as after the process has changed its user
            self._is_shown = False
            found = self._guessed(parked)
        if found == "blocked" and (_has_children() or _alarm_handler() != self._alarm):
            return "outside"
        return found

    def has_foreign_threads(self) -> bool:
        """Return whether there are threads of which nobody can know what they wait for.

        They were started in other languages, or by code of the agent that does not use `threading`. Those that wait for
        a lock without a timeout do not count, such as idle workers of a library: they bring nothing by themselves.
        """
        if not self._is_shown:
            return False
        known, frames = python_threads(), thread_frames()
        loose = [frame for ident, frame in frames.items() if ident not in known]
        natives = {native_id(thread) for thread in known.values()}
        unknown = [
            native
            for native in _tasks()
            if native not in natives and not _is_locked(_system_call(native))
        ]
        return len(unknown) > len(loose) or any(map(_runs_agent_code, loose))

    def _agents(self) -> tuple[dict[int, threading.Thread], dict[int, threading.Thread], set[int]]:
        """Return the agent's threads by identity, all others by native identity, and the native ids of ours."""
        here = threading.get_ident()
        agents: dict[int, threading.Thread] = {}
        others: dict[int, threading.Thread] = {}
        ours: set[int] = set()
        frames: dict[int, FrameType] | None = None
        for ident, thread in python_threads().items():
            if ident == here or thread.name in OURS:
                ours.add(native_id(thread))
            elif thread not in self._before:
                agents[ident] = thread
            else:
                frames = thread_frames() if frames is None else frames
                frame = frames.get(ident)
                has_moved = frame is not None and self._stood.get(ident) != _position(frame)
                if has_moved and _runs_agent_code(frame):
                    agents[ident] = thread
                else:
                    others[native_id(thread)] = thread
        return agents, others, ours

    def _shown(self, parked: Mapping[int, Parking]) -> Activity:
        """Judge by what the system shows, in two looks: during the first, one thread may wake or start another."""
        self.is_guess = False
        agents, _, ours = self._agents()
        by_native = {native_id(thread): ident for ident, thread in agents.items()}
        found: Activity = "blocked"
        seen: dict[int, tuple[str | None, str | None]] = {}
        moves: dict[int, str | None] = {}
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
            seen[native] = switches, call
            if ident is not None and parking in (None, "lock"):
                moves[native] = switches
        self.moves = moves
        again = {
            each: (_switches(each), _system_call(each)) for each in _tasks() if each not in ours
        }
        return found if again == seen and not self.is_guess else "running"

    def _state_of(
        self,
        native: int,
        call: str | None,
        switches: str | None,
        ident: int | None,
        parking: Parking | None,
    ) -> State:
        if call is None:
            return "blocked"  # it has ended
        if switches is None:
            return "running"
        number = call.partition(" ")[0]
        if number in ("running", "-1"):
            return "running"
        machine = platform.machine()
        if _is_locked(call):
            return "blocked"
        if int(number) == FUTEX[machine]:
            if self._is_brief(native, call, switches):
                return "waking" if ident is None else "running"
            return "blocked" if ident is None or _is_idle_worker(ident) else "outside"
        self._timed.pop(native, None)
        if ident is None or parking in ("loop", "held") or int(number) in ACCEPT[machine]:
            return "blocked"
        return "outside"

    def _is_brief(self, native: int, call: str, switches: str) -> bool:
        """Return whether a wait with a timeout may be for the GIL, which is short."""
        now = world.monotonic()
        known = self._timed.get(native)
        if known is None or known[:2] != (call, switches):
            self._timed[native] = call, switches, now
            return True
        return now - known[2] < sys.getswitchinterval() * 1e9 + SETTLED_NS

    def _guessed(self, parked: Mapping[int, Parking]) -> Activity:
        """Judge by frames and CPU time alone."""
        agents, _, _ = self._agents()
        frames = {i: f for i, f in thread_frames().items() if i in agents}
        stands = {
            i: _position(f) for i, f in frames.items() if parked.get(i) not in ("loop", "held")
        }
        now, here = world.monotonic(), threading.get_ident()
        cpu = world.process_cpu() - world.thread_cpu()  # that of all threads but this one
        before, since, used = self._still.get(here, (None, 0, 0))
        if before != stands or cpu - used > STILL_CPU_NS + (now - since) * STILL_CPU:
            self._still[here] = stands, now, cpu
            return "running"
        still_ns = now - since
        loose = [frame for ident, frame in frames.items() if ident not in parked]
        modules = {str(frame.f_globals.get("__name__")) for frame in loose}
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
        package_of(each) not in LEFT_ALONE
        or str(each.f_globals.get("__name__")).startswith(AGENT_LOOP)
        for each in outward(frame)
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


def _may_look() -> bool:
    """Return whether this process may still read its own system calls: not after it has changed its user."""
    try:
        return _system_call(threading.get_native_id()) is not None
    except OSError:
        return False


def _tasks() -> list[int]:
    """Return the native identities of all threads."""
    names = os.listdir(TASKS)  # noqa: PTH208 - it runs at each look, and pathlib costs as much as all the rest
    return [int(name) for name in names]


def _system_call(native: int) -> str | None:
    """Return the line of a thread's system call; None if the thread has ended.

    Raises:
        OSError: this process may not read it.
    """
    return _read(f"/proc/self/task/{native}/syscall")


def _switches(native: int) -> str | None:
    """Return how many context switches a thread has had, as text; None if it runs or is about to.

    The number changes whenever the thread has run. The state is needed as well: a thread that another CPU is waking
    is still in its system call (Linux, TASK_WAKING in include/linux/sched.h).
    """
    status = _read(f"/proc/self/task/{native}/status") or ""
    if status.partition("\nState:")[2].lstrip().startswith("R"):
        return None
    return status[status.find("voluntary_ctxt_switches") :]


def _read(path: str) -> str | None:
    """Return what a file of a thread holds; None if the thread has ended.

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
    kept = process.part(Children)
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        except OSError:
            pass
    popen = {child.pid for child in list(kept.children) if child.returncode is None}
    return any(map(_is_alive, popen | set(_forked())))


def _forked() -> Iterable[int]:
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
