"""Virtual time: waits with a timeout in the agent's code use the virtual clock of the replay.

The following are virtual while a replay is open, unless the replay has a pace:

- `time.sleep` of the agent and its libraries, even if the name was imported or is a default argument;
- `threading.Condition.wait(timeout)`, which `Event`, `Semaphore`, `Barrier`, `Timer`, `queue.Queue`,
  `concurrent.futures` and `run_coroutine_threadsafe(...).result(timeout)` use; `Thread.join(timeout)`;
- the timers of every asyncio event loop that uses a selector (`sleep`, `call_later`, `wait_for`, `timeout`, and anyio
  on asyncio), and the deadlines of trio;
- `time.monotonic`, `perf_counter`, `time` and their `_ns` forms, `datetime.now`, `utcnow` and `today`, `date.today`,
  except for code of the standard library and of packages that need the real time
  (`agentobs.determinism.patches.UNPATCHED_PACKAGES`): the returned times include the jumps.

The following are real: `lock.acquire(timeout=...)`, `SimpleQueue.get(timeout=...)`, `select.select`, timeouts of
sockets and of `subprocess`, `signal.alarm`, `multiprocessing`, event loops that are not written in Python (uvloop,
Windows' proactor), gevent, and functions of `time` in places where they cannot be replaced (a closure, a container, an
attribute of an object). While an agent waits for one of these, time passes at its real speed. Child processes are real:
while a child of the agent is alive, time does not jump. Threads of pytest, its plugins and agentobs always use real
time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures  # noqa: F401 - its modules must be imported before they are patched
import contextlib
import ctypes
import datetime
import functools
import gc
import itertools
import operator
import os
import queue
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from agentobs import world
from agentobs.determinism.patches import UNPATCHED_PACKAGES
from agentobs.recording.wire.responses import wake as check_again
from agentobs.runtime import process
from replay.agent_code.call_sites import is_agents
from replay.agent_code.imported_modules import ImportedModules, identity
from replay.agent_code.thread_stacks import outer_frames, package_of
from replay.virtual_time.thread_states import Parking, ThreadStates, note_child
from replay.virtual_time.virtual_clock import VirtualClock

SCHEDULERS = frozenset({"asyncio", "concurrent", "threading", "queue", "sched"})
"""Modules of the standard library that compute the deadlines of waits, and therefore read the clock that ends these
waits.
"""
RUNNERS = SCHEDULERS | {"functools", "contextvars", "_thread", "contextlib"}
"""Modules of the standard library that may call a function of the agent."""
JOBS = "agentobs.determinism.jobs"
"""The agentobs module that wraps work items: its frames are below the frames of a work item of the agent."""
UNTOUCHED = (
    UNPATCHED_PACKAGES
    - {"anthropic", "httpx2", "httpcore2", "anyio", "sniffio", "requests", "urllib3"}
) - SCHEDULERS
"""Packages whose own sleeps are real: they wait for real events, or do not belong to the agent."""
JOIN_SECONDS = (0.005, 0.25)
"""How often `Thread.join(timeout)` checks whether the thread has ended, in virtual seconds. Our choice."""

_METHODS = (MethodType, staticmethod, classmethod)
"""The types of the objects that contain a function as `__func__`."""
TRIO_MAX_SECONDS = 86_400
"""The longest timeout of trio. It means that there is no deadline."""

Undo = list[Callable[[], None]]


class State:
    """The virtual time of this process."""

    def __init__(self) -> None:
        self.clock: VirtualClock | None = None
        self.later_patches: Undo | None = None
        """Collects patches that are made after the replay has opened."""
        self.loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        """The event loops that have waited on the virtual clock."""
        self.loop_offsets: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float] = (
            weakref.WeakKeyDictionary()
        )
        """The number of seconds by which the clock of a loop is ahead of the real clock, for loops from earlier
        replays.
        """
        self.first_timers: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[float | None, int | None]
        ] = weakref.WeakKeyDictionary()
        """Time and identity of the first timer of each loop when it last waited, ignoring timers of held responses."""
        self.wanted: frozenset[int] = frozenset()
        """The identities of the functions of `time` that the last replay replaced, and of `time` itself."""
        self.imported = ImportedModules()
        """All modules at the last search."""
        self.sizes: list[int] = []
        """The number of names of each of these modules."""
        self.candidates: list[int] = []
        """The positions of those that had a name for one of these functions, or belong to the agent."""
        self.without_defaults: dict[str, tuple[int, int]] = {}
        """By module name: the identity and the number of names of each library module whose functions have none of
        these functions as a default argument.
        """


def current_clock() -> VirtualClock | None:
    """Return the virtual clock of the open replay; None if no replay is open, or if its time is real."""
    return process.state(State).clock


def loops_in_use() -> list[asyncio.AbstractEventLoop]:
    """Return the event loops that have waited on the virtual clock and are not closed."""
    return [loop for loop in list(process.state(State).loops) if not loop.is_closed()]


@contextlib.contextmanager
def virtual_time() -> Iterator[VirtualClock]:
    """Make the agent's waits take no real time while the context is open.

    A nested replay shares the clock of the outer one.
    """
    state = process.state(State)
    if state.clock is not None:
        was_live = state.clock.is_live
        state.clock.go_virtual()
        try:
            yield state.clock
        finally:
            if was_live:
                state.clock.go_live()
        return
    clock = VirtualClock(ThreadStates())
    with contextlib.ExitStack() as stack:
        undo: Undo = []
        stack.callback(_restore, undo)
        stack.callback(_close, clock)
        state.clock, state.later_patches = clock, undo
        for patch in (_patch_time, _patch_datetime, _patch_threads, _patch_loops, _patch_trio):
            patch(undo)
        yield clock


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """Use real time while the context is open, even inside a replay whose time is virtual."""
    state = process.state(State)
    with contextlib.nullcontext() if state.clock is None else state.clock.real_time():
        yield


def _close(clock: VirtualClock) -> None:
    state = process.state(State)
    clock.close()
    for loop in {*loops_in_use(), *state.loop_offsets}:
        state.loop_offsets[loop] = max(loop.time() - float(_real_monotonic()), 0.0)
        # Clocks must not go back, because timers that are already scheduled would fire late.
        loop.time = functools.partial(_offset_monotonic, state.loop_offsets[loop])  # type: ignore[method-assign]
    state.clock = state.later_patches = None
    state.loops.clear()


def _offset_monotonic(seconds: float) -> float:
    return float(_real_monotonic()) + seconds


def _restore(undo: Undo) -> None:
    for each in reversed(undo):
        each()


def _go_real_in_child() -> None:
    """Use real time in a forked child process."""
    process.state(State).clock = None


os.register_at_fork(after_in_child=_go_real_in_child)


# Decisions: is a wait or a read of the clock real?


def _waiting_clock(frame: FrameType) -> VirtualClock | None:
    """Return the virtual clock for a wait of the calling thread; None if the wait is real."""
    clock = process.state(State).clock
    if clock is None or clock.is_live:
        return None
    for each in outer_frames(frame):
        package = package_of(each)
        if each.f_globals.get("__name__") == JOBS:
            continue  # a wrapper of agentobs; the function that it runs may belong to the agent
        if package not in sys.stdlib_module_names:
            if _is_untouched(package):
                return None
            break
    return clock if clock.is_agent_thread(frame) else None


def _is_real(frame: FrameType) -> bool:
    """Return whether code reads the real clock."""
    package = package_of(frame)
    is_left_alone = package in UNPATCHED_PACKAGES or package.startswith("pytest_")
    return is_left_alone and package not in SCHEDULERS


def _reader(frame: FrameType) -> FrameType:
    """Return the frame that reads the clock, ignoring the patches of a session."""
    if (
        frame.f_globals.get("__name__") == "agentobs.determinism.patches"
        and frame.f_back is not None
    ):
        return frame.f_back
    return frame


# time


_ORIGINALS: dict[str, Callable[..., Any]] = {
    name: getattr(time, name)
    for name in (
        "sleep",
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
    )
}
_real_monotonic = _ORIGINALS["monotonic"]


@functools.wraps(time.sleep)
def _sleep(seconds: Any) -> None:
    frame = sys._getframe(1)
    clock = _waiting_clock(frame) if isinstance(seconds, int | float) and seconds > 0 else None
    package = package_of(frame)
    if clock is None or package in sys.stdlib_module_names - RUNNERS:
        _ORIGINALS["sleep"](seconds)
    else:
        clock.sleep(float(seconds), "a sleep")


def _read(name: str, *, is_scheduling: bool) -> Callable[[], float]:
    """Return a function that reads a clock of `time` plus all jumps."""
    is_count = name.endswith("_ns")

    @functools.wraps(_ORIGINALS[name])
    def read() -> float:
        state = process.state(State)
        value: float = _ORIGINALS[name]()
        clock, frame = state.clock, _reader(sys._getframe(1))
        if clock is None or _is_real(frame):
            return value
        if package_of(frame) == "trio" and state.later_patches is not None:
            _patch_trio(state.later_patches)  # trio was imported after the replay had opened
        if is_scheduling and package_of(frame) in SCHEDULERS:
            if not clock.is_agent_thread(frame):
                return value
            return int(clock.now() * 1e9) if is_count else clock.now()
        return value + (clock.ahead_ns if is_count else clock.ahead_ns / 1e9)

    return read


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "sleep": _sleep,
    **{
        name: _read(name, is_scheduling=name.startswith("monotonic"))
        for name in _ORIGINALS
        if name != "sleep"
    },
}
"""The replacements of the functions of `time`. They are created only once, so that names that were imported during a
replay stay valid.
"""


def _patch_time(undo: Undo) -> None:
    for name, replacement in _REPLACEMENTS.items():
        if (found := getattr(time, name)) is not replacement:
            _ORIGINALS[name] = found
    patched = {identity(_ORIGINALS[name]): new for name, new in _REPLACEMENTS.items()}
    restored = {identity(new): _ORIGINALS[name] for name, new in _REPLACEMENTS.items()}
    changed = _replace_functions(patched, _modules_with(frozenset({*patched, identity(time)})))
    undo.append(functools.partial(_restore_names, restored, changed))
    # These two modules import `monotonic` under another name, and compute the deadlines of waits with it.
    for module, name in ((threading, "_time"), (queue, "time")):
        _set(undo, module, name, _REPLACEMENTS["monotonic"])


def _modules_with(wanted: frozenset[int]) -> list[ModuleType]:
    """Return the modules that have a name for one of these objects.

    This code runs in each replay for all imported modules. A module of a library that had none of the objects is not
    searched again until it has more or fewer names.

    Args:
        wanted: the identities of the objects.
    """
    state = process.state(State)
    _, modules, same = state.imported.look()
    sizes = list(map(len, map(vars, modules)))
    if state.wanted != wanted:
        state.wanted, state.without_defaults, same = wanted, {}, 0
    has_new_size = list(map(operator.ne, sizes[:same], state.sizes))
    searched = {
        *(index for index in state.candidates if index < same),
        *itertools.compress(range(same), has_new_size),
        *range(same, len(modules)),
    }
    using = [index for index in sorted(searched) if _has_any(modules[index], wanted)]
    state.candidates = sorted({*using, *(i for i in searched if _is_of_agent(modules[i]))})
    state.sizes = sizes
    return [modules[index] for index in using]


def _has_any(module: ModuleType, wanted: frozenset[int]) -> bool:
    """Return whether a module has a name for one of the objects with these identities."""
    return not wanted.isdisjoint(map(identity, vars(module).values()))


def _is_of_agent(module: ModuleType) -> bool:
    return is_agents(str(getattr(module, "__file__", None) or "<"))


def _restore_names(restored: dict[int, Callable[..., Any]], changed: list[ModuleType]) -> None:
    """Restore the functions of `time` in all modules in which they were replaced or imported during the replay."""
    later = process.state(State).imported.imported_since()
    _replace_functions(restored, [*changed, *later])


def _replace_functions(
    new: dict[int, Callable[..., Any]], modules: Iterable[object]
) -> list[ModuleType]:
    """Replace functions of `time` and return the modules that were changed.

    The functions are replaced in `time` itself, in modules that imported them, and in default arguments.

    Args:
        new: the new functions, by the identity of the old functions.
        modules: the modules in which to look for the old functions.
    """
    changed: list[ModuleType] = []
    wanted = frozenset({*new, identity(time)})
    for module in [time, *modules]:
        if not isinstance(module, ModuleType):
            continue
        if not (module is time or _may_use_time(module)) or not _has_any(module, wanted):
            continue
        names = vars(module)
        found = {
            name: new[identity(value)] for name, value in names.items() if identity(value) in new
        }
        names.update(found)
        if (module is not time and _replace_defaults(module, new)) or found:
            changed.append(module)
    return changed


def _may_use_time(module: ModuleType) -> bool:
    name = str(getattr(module, "__name__", ""))
    package = name.partition(".")[0]
    return name == "sched" or not (_is_untouched(package) or package in SCHEDULERS)


def _is_untouched(package: str) -> bool:
    """Return whether a package waits in real time: agentobs, pytest, and packages that wait for real events do."""
    return package in UNTOUCHED or package.startswith("pytest_")


def _replace_defaults(module: ModuleType, new: dict[int, Callable[..., Any]]) -> bool:
    """Replace functions in the default arguments of a module's functions; return whether there were any."""
    known, shape = process.state(State).without_defaults, (identity(module), len(vars(module)))
    if known.get(module.__name__) == shape:
        return False
    has_found = False
    for value in list(vars(module).values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            function = member.__func__ if isinstance(member, _METHODS) else member
            if type(function) is not FunctionType:
                continue
            positional, named = function.__defaults__ or (), function.__kwdefaults__ or {}
            if not (positional or named):
                continue
            if not new.keys().isdisjoint(map(identity, (*positional, *named.values()))):
                function.__defaults__ = (
                    tuple(new.get(identity(each), each) for each in positional) or None
                )
                later = {name: new.get(identity(each), each) for name, each in named.items()}
                named.update(later)
                has_found = True
    if not has_found and not _is_of_agent(module):
        known[module.__name__] = shape
    return has_found


def _set(undo: Undo, holder: Any, name: str, value: Any) -> None:
    undo.append(functools.partial(setattr, holder, name, getattr(holder, name)))
    setattr(holder, name, value)


# datetime


def _patch_datetime(undo: Undo) -> None:
    """Make the class methods that read the clock include the jumps, without replacing the classes."""
    for cls, name in (
        (datetime.datetime, "now"),
        (datetime.datetime, "utcnow"),
        (datetime.date, "today"),
    ):
        methods = gc.get_referents(cls.__dict__)[0]
        original = methods[name]
        _set_method(cls, methods, name, classmethod(_with_jumps(original)))
        undo.append(functools.partial(_set_method, cls, methods, name, original))


def _with_jumps(original: Any) -> Callable[..., Any]:
    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        clock, frame = process.state(State).clock, _reader(sys._getframe(1))
        read = original.__get__(None, cls)
        value = read(*args, **kwargs)
        if clock is None or not clock.ahead_ns or _is_real(frame):
            return value
        ahead = datetime.timedelta(microseconds=clock.ahead_ns // 1000)
        if isinstance(value, datetime.datetime):
            tz = value.tzinfo
            return (
                value + ahead
                if tz is None
                else (value.astimezone(datetime.UTC) + ahead).astimezone(tz)
            )
        moment = datetime.datetime.fromtimestamp(_ORIGINALS["time"]()) + ahead  # noqa: DTZ006 - a date is local
        return cls(moment.year, moment.month, moment.day)

    call.__name__ = original.__name__
    return call


def _set_method(cls: type, methods: dict[str, Any], name: str, value: Any) -> None:
    methods[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


# threading


def _patch_threads(undo: Undo) -> None:
    real_wait, real_join = threading.Condition.wait, threading.Thread.join
    real_init: Any = subprocess.Popen.__init__

    @functools.wraps(real_wait)
    def wait(self: Any, timeout: float | None = None) -> bool:
        clock = None if timeout is None or timeout <= 0 else _waiting_clock(sys._getframe(1))
        if clock is None or timeout is None or not self._is_owned():
            return real_wait(self, timeout)
        return _condition_wait(clock, self, timeout)

    @functools.wraps(real_join)
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        clock = None if timeout is None or timeout <= 0 else _waiting_clock(sys._getframe(1))
        if clock is None or timeout is None:
            return real_join(self, timeout)
        until, step = clock.now() + timeout, JOIN_SECONDS[0]
        real_join(self, 0)
        while self.is_alive() and (remaining := until - clock.now()) > 0:
            clock.sleep(min(step, remaining), f"thread {self.name}")
            step = min(step * 1.5, JOIN_SECONDS[1])
            real_join(self, 0)
        return None

    @functools.wraps(real_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **kwargs)
        note_child(self)

    _set(undo, threading.Condition, "wait", wait)
    _set(undo, threading.Thread, "join", join)
    _set(undo, subprocess.Popen, "__init__", init)


def _condition_wait(clock: VirtualClock, condition: Any, timeout: float) -> bool:
    """Wait like `threading.Condition.wait` (CPython 3.11 to 3.14), but on the virtual clock."""
    waiter = threading.Lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    was_notified = False
    try:
        was_notified = clock.park(waiter, timeout, "a condition, an event or a queue")
        return was_notified
    finally:
        condition._acquire_restore(saved)
        if not was_notified:
            with contextlib.suppress(ValueError):
                condition._waiters.remove(waiter)


# asyncio


def _patch_loops(undo: Undo) -> None:
    state = process.state(State)
    real_time_of = asyncio.BaseEventLoop.time

    @functools.wraps(real_time_of)
    def loop_time(self: asyncio.BaseEventLoop) -> float:
        state = process.state(State)
        return (
            real_time_of(self)
            if state.clock is None
            else state.clock.now() + state.loop_offsets.get(self, 0.0)
        )

    for loop in list(state.loop_offsets):
        vars(loop).pop("time", None)
    _set(undo, asyncio.BaseEventLoop, "time", loop_time)
    for name in (
        "SelectSelector",
        "PollSelector",
        "EpollSelector",
        "DevpollSelector",
        "KqueueSelector",
    ):
        cls = getattr(selectors, name, None)
        if cls is not None:
            _set(undo, cls, "select", _selecting(cls.select))


def _selecting(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def wait(self: Any, timeout: float | None = None) -> Any:
        state = process.state(State)
        clock = state.clock
        loop: Any = None if clock is None or clock.is_live else asyncio._get_running_loop()
        if clock is None or loop is None or not _can_be_virtual(loop, self):
            return real(self, timeout)
        state.loops.add(loop)
        ready = real(self, 0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return _wait_in_loop(clock, loop, functools.partial(real, self))

    return wait


def _can_be_virtual(loop: Any, selector: object) -> bool:
    """Return whether a loop waits in a selector and has no clock of its own, so that its timers can be virtual."""
    has_custom_time = type(loop).time is not asyncio.BaseEventLoop.time or "time" in vars(loop)
    return getattr(loop, "_selector", None) is selector and not has_custom_time


def _wait_in_loop(clock: VirtualClock, loop: Any, real: Callable[[float | None], Any]) -> Any:
    """Wait for the loop's files, or for its next timer on the virtual clock. Checks of held responses use real time."""
    state = process.state(State)
    timers = [timer for timer in loop._scheduled if not timer._cancelled]
    checks = [timer for timer in timers if timer._callback is check_again]
    others = [timer for timer in timers if timer._callback is not check_again]
    due, first = min(((each._when, id(each)) for each in others), default=(None, None))
    if (due, first) != state.first_timers.get(loop):
        state.first_timers[loop] = due, first
        clock.note_loop_activity()

    def wake() -> bool:
        loop._write_to_self()
        return True

    seconds = None if due is None else max(due - loop.time(), 0.0)
    parking: Parking = "loop with files" if _waits_for_files(loop) else "loop"
    subject = "the next timer of its event loop"
    with clock.waiting(seconds, subject, wake, lambda: bool(loop._ready), parking) as wait:
        if wait.is_due:
            return real(0)
        first_ns = min((timer._args[1] for timer in checks), default=None)
        events = real(None if first_ns is None else max(first_ns - world.monotonic(), 0) / 1e9)
    if events:
        clock.note_loop_activity()
    for timer in checks:
        if timer._args[1] <= world.monotonic():
            timer._callback(*timer._args)
            timer.cancel()
    return events


def _waits_for_files(loop: Any) -> bool:
    """Return whether a loop waits for files other than its wake-up pipe and its listening sockets."""
    files = loop._selector.get_map()
    if len(files) <= 1:
        return False
    wake_pipe = loop._ssock.fileno()
    return any(key.fd != wake_pipe and not _listens(key.fileobj) for key in list(files.values()))


def _listens(file: object) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        return isinstance(file, socket.socket) and bool(
            file.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )
    return False


# trio


def _patch_trio(undo: Undo) -> None:
    """Make trio's default clock and its wait for files virtual (trio 0.35), if trio was imported."""
    run: Any = sys.modules.get("trio._core._run")
    clock_class = getattr(run, "SystemClock", None)
    if clock_class is None or getattr(clock_class.current_time, "__wrapped__", None) is not None:
        return
    real_current = clock_class.current_time

    @functools.wraps(real_current)
    def current_time(self: Any) -> float:
        state = process.state(State)
        return float(real_current(self) if state.clock is None else self.offset + state.clock.now())

    _set(undo, clock_class, "current_time", current_time)
    for name in ("EpollIOManager", "KqueueIOManager"):
        manager = getattr(run, name, None) or getattr(
            sys.modules.get(f"trio._core._io_{name[:-9].lower()}"), name, None
        )
        if manager is not None:
            _set(undo, manager, "get_events", _getting_events(run, manager.get_events))


def _getting_events(run: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def get_events(self: Any, timeout: float) -> Any:
        clock = process.state(State).clock
        ready = real(self, 0) if clock is not None and timeout > 0 else None
        if clock is None or clock.is_live or timeout <= 0 or ready:
            return ready or real(self, timeout)
        entries = run.GLOBAL_RUN_CONTEXT.runner.entry_queue

        def wake() -> bool:
            entries.wakeup.wakeup_thread_and_signal_safe()
            return True

        is_open = len(self._registered) > 1 or clock.has_hold_in_thread()
        parking: Parking = "loop with files" if is_open else "loop"
        seconds = None if timeout >= TRIO_MAX_SECONDS else timeout

        def is_ready() -> bool:
            return bool(entries.queue or entries.idempotent_queue)

        subject = "the next deadline of trio"
        with clock.waiting(seconds, subject, wake, is_ready, parking) as wait:
            return real(self, 0 if wait.is_due else timeout)

    return get_events
