"""Jobs: the asyncio tasks, pool work items and threads that make requests, and which job started which.

The code fixes the order of two requests of one job. Requests of two jobs have a fixed order only if one job was started
by the other, or after the other had finished. The requests alone do not show this, because jobs that may overlap do not
have to. A replay also needs to know to which of several equal jobs a request belongs: the code fixes the order in which
a job starts others, but not the order in which they run.

Neither asyncio nor `concurrent.futures` exposes who started a task or a work item, so the three places where they are
created are wrapped, once per process. The function, result and exceptions of a task, work item or thread do not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import itertools
import os
import sys
import threading
import weakref
from asyncio.base_events import BaseEventLoop
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import thread as pools
from contextvars import ContextVar
from types import CoroutineType, FunctionType, GetSetDescriptorType, MethodType
from typing import Any

from agentobs import world
from agentobs.errors import error_kind, say_once
from agentobs.runtime import process

DEPTH_MAX = 16
"""How many ancestors of a job are recorded. Our choice."""
ENDED_MAX = 10_000
"""The maximum number of ends of jobs that are kept for one session. Our choice."""
SESSIONS_MAX = 10_000
"""The maximum number of open sessions for which ends of jobs are kept. Our choice."""

VALUES_MAX = 32
"""The maximum number of values that a job keeps of the functions that started it and its ancestors. Our choice."""
WRAPPERS_MAX = 16
"""The maximum number of partials and methods around a function that are unwrapped for its name. Our choice."""

Values = tuple[tuple[Any, ...], ...]
"""Function, name and value of each argument, and the objects that hold it, see `callers`."""
Step = tuple[str, int, int, int]
"""The name of a job's function, its number among its parent's jobs of that name, its start in nanoseconds since 1970
(0 if unknown), and its serial number."""

_ATTRIBUTE = "_agentobs_job"  # written out where it is set for each task
"""The attribute of a task, a work item or a thread that holds its job."""


class Job:
    """A task, a work item of a pool or a thread."""

    # A job is made for each task and work item of the process, so defaults that rarely change are class attributes.
    last: str | None = None
    """The last attempt that it made; before its first one, the last attempt of its parent when it was started."""
    values: Values = ()
    """The arguments of the functions that started it and its ancestors."""
    is_worker = False
    """Whether it takes its work from a queue."""
    owner: Callable[[], Any] | None = None
    """A reference to its task or thread; None for a work item."""
    sessions: frozenset[str] = frozenset()
    """The open sessions for which its end is recorded."""
    _counts: dict[str, int] | None = None
    _is_over = _is_watched = False

    def __init__(self, parent: Job | None, name: str, started_ns: int = 0) -> None:
        """Start a job.

        Args:
            parent: the job that started it; None if it is not known.
            name: the name of the function that it runs; empty if that is not known.
            started_ns: when it was started, in nanoseconds since 1970; 0 if it is not known.
        """
        self.serial = serial = next(process.part(State).serials)
        if parent is None:
            self.steps: tuple[Step, ...] = ((name, 0, started_ns, serial),)
            return
        above = parent.steps
        if len(above) >= DEPTH_MAX:
            # Ancestors are not referenced: a job that starts the next one, endlessly, must not keep them all.
            above = above[1 - DEPTH_MAX :]
        if parent.last is not None:
            self.last, self.values = parent.last, parent.values
        counts = parent._counts
        if counts is None:
            counts = parent._counts = {}
        number = counts[name] = counts.get(name, -1) + 1
        self.steps = (*above, (name, number, started_ns, serial))

    @property
    def path(self) -> tuple[tuple[str, int, int], ...]:
        """Element, start and serial number of it and the jobs above it, the outermost first.

        The element is a digest of its name, and its number among the jobs of that name which its parent started after
        its last request. It is empty if the name is unknown: such a job is noticed when it makes a request, and which
        of them does so first is chance.
        """
        return tuple(
            (f"{_digest(name)}.{number}" if name else "", started_ns, serial)
            for name, number, started_ns, serial in self.steps
        )

    def asked(self, attempt_id: str) -> str | None:
        """Note an attempt of this job; return the previous one."""
        before, self.last = self.last, attempt_id
        self._counts = None
        return before

    def forget_counts(self) -> None:
        """Restart the count of the jobs that it starts at 0."""
        self._counts = None

    def end(self) -> None:
        """Note that this job has ended, for those of its sessions that are still open."""
        state = process.part(State)
        self._is_over = True
        if not self.sessions:
            return
        with state.lock:
            now = world.now()
            for known in [state.sessions[each] for each in self.sessions if each in state.sessions]:
                known.jobs.discard(self)
                known.ended.append((self.serial, now))
            self.sessions = frozenset()

    def watch(self, task: asyncio.Future[Any]) -> None:
        """Note that it has ended when its task is done."""
        if not self._is_watched:
            self._is_watched = True
            task.add_done_callback(lambda _: self.end())

    @property
    def is_over(self) -> bool:
        """Whether it has returned or raised."""
        if self._is_over or self.owner is None:
            return self._is_over
        owner = self.owner()
        if owner is None:
            return True
        return bool(owner.done()) if hasattr(owner, "done") else not owner.is_alive()


class State:
    """The jobs and open sessions of this process."""

    def __init__(self) -> None:
        self.items = threading.local()
        """The job of the work item that a thread runs."""
        self.scope: Callable[[Any], tuple[Values, bool]] | None = None
        """Returns the arguments of the functions of a stack, and whether they take work from a queue."""
        self.sessions: OrderedDict[str, _Session] = OrderedDict()
        """The open sessions of this process by ID."""
        self.begin()

    def begin(self) -> None:
        """Start with new serial numbers and a new lock, as in a child process."""
        self.serials = itertools.count((os.getpid() << 32) + 1)
        """Serial numbers of jobs; the processes of one session have their own."""
        self.lock = threading.RLock()
        """Reentrant, because a signal handler may make a request while its thread holds it."""


_here: ContextVar[Job | None] = ContextVar("agentobs_job", default=None)


@functools.lru_cache(maxsize=4096)
def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()


def current(*, may_root: bool = False) -> Job | None:
    """Return the current job; None if it is not known.

    Args:
        may_root: whether this thread is known to run only one job.
    """
    state = process.part(State)
    task = _current_task()
    if task is not None:
        return _of_task(task)
    item: Job | None = getattr(state.items, "job", None)
    if item is not None:
        return item
    thread, inherited = threading.current_thread(), _here.get()
    if inherited is not None and _is_owned(inherited, thread):
        return inherited
    is_foreign = _is_foreign(thread)
    own: Job | None = None if is_foreign else thread.__dict__.get(_ATTRIBUTE)
    if inherited is not None and inherited is not own and not _is_child(own, inherited):
        # A worker thread of a library, which runs this in a copy of the caller's context.
        return _adopted(inherited, thread)
    if own is not None:
        return own
    if not is_foreign and (may_root or thread is threading.main_thread()):
        job = Job(None, "")
        job.owner = weakref.ref(thread)
        thread.__dict__[_ATTRIBUTE] = job
        return job
    return None


def _current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        trio = sys.modules.get("trio")
        if trio is None:
            return None
    with contextlib.suppress(RuntimeError, AttributeError):
        return trio.lowlevel.current_task()
    return None


def _of_task(task: Any) -> Job:
    known: Job | None = getattr(task, _ATTRIBUTE, None)
    if known is not None:
        return known
    inherited = _here.get()
    if inherited is not None and inherited.owner is None:
        return inherited  # a task that runs before `create_task` has returned
    return _adopted(inherited, task)


def _adopted(parent: Job | None, owner: Any) -> Job:
    """Return a new job for a task or thread whose starter is not known."""
    job = Job(parent, "")
    job.owner = weakref.ref(owner)
    if isinstance(owner, threading.Thread):
        _here.set(job)
    else:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(owner, _ATTRIBUTE, job)
    return job


def _is_child(job: Job | None, parent: Job) -> bool:
    return job is not None and len(job.steps) > 1 and job.steps[-2][3] == parent.serial


def _is_owned(job: Job, thread: threading.Thread) -> bool:
    return job.owner is not None and job.owner() is thread


def _is_foreign(thread: threading.Thread) -> bool:
    """Return whether a thread is a worker of a library, which may run jobs of several starters."""
    kind = type(thread)
    if kind is threading.Thread:
        target = getattr(thread, "_target", None)
        return getattr(target, "__module__", "") in _POOLS
    return kind.__module__.partition(".")[0] in _POOLS_OF


_POOLS = ("concurrent.futures.thread", "multiprocessing.pool", "multiprocessing.dummy")
_POOLS_OF = ("multiprocessing", "anyio", "joblib")


_now = world.now


def _started(find: Callable[[Any], Any], given: Any) -> Job:
    """Return a new job that the current job starts.

    Args:
        find: returns the function that the job runs.
        given: what is passed to `find`.
    """
    state = process.part(State)
    parent = current()
    job = Job(parent, _name_of(find(given)), _now())
    if parent is not None and parent.last is not None and state.scope is not None:
        values, takes_work = state.scope(sys._getframe(2))
        job.values = (*values, *job.values)[:VALUES_MAX]
        parent.is_worker = parent.is_worker or takes_work
    return job


def install(scope: Callable[[Any], tuple[Values, bool]]) -> None:
    """Track which job starts which in this process, from the first call on.

    Args:
        scope: returns the arguments of the functions of a stack, from a frame outward, and whether they take work from
            a queue.
    """
    state = process.part(State)
    with state.lock:
        if state.scope is not None:
            return
        state.scope = scope
        _wrap_tasks()
        _wrap_work_items()
        _wrap_threads()


def begin() -> None:
    """Restart the count of started jobs when a session begins, because earlier jobs may differ in a replay."""
    job = current(may_root=True)
    if job is not None:
        job.forget_counts()


class _Session:
    """What is known of the jobs of an open session."""

    __slots__ = ("ended", "jobs")

    def __init__(self) -> None:
        self.jobs: set[Job] = set()
        """The jobs whose end is recorded for it, while they run."""
        self.ended: deque[tuple[int, int]] = deque(maxlen=ENDED_MAX)
        """The serial numbers of its jobs that have ended, and when."""


def _forked() -> None:
    """Reset serial numbers and locks in a child process, because a thread that no longer exists may hold the lock."""
    state = process.part(State)
    state.begin()
    state.sessions.clear()


os.register_at_fork(after_in_child=_forked)


def _wrap_tasks() -> None:
    create = BaseEventLoop.create_task

    @functools.wraps(create)
    def create_task(self: Any, coro: Any, **options: Any) -> Any:
        job = _quietly(_started, _itself, coro)
        if job is None:
            return create(self, coro, **options)
        token = _here.set(job)
        try:
            task = create(self, coro, **options)
        finally:
            _here.reset(token)
        # If it fails, this is a task of another kind, which is known by its context only.
        with contextlib.suppress(Exception):
            _attach(job, task, self._debug)
        return task

    BaseEventLoop.create_task = create_task  # type: ignore[method-assign]


def _attach(job: Job, task: Any, debug: bool) -> None:
    """Connect a job and the task that runs it."""
    job.owner = weakref.ref(task)
    task._agentobs_job = job
    if job.sessions:  # an eager task has made requests before it was returned
        job.watch(task)
    trace = getattr(task, "_source_traceback", None) if debug else None
    if trace and trace[-1][0] == __file__:
        del trace[-1]


def _wrap_work_items() -> None:
    kind: Any = pools._WorkItem
    make, run = kind.__init__, kind.run

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._agentobs_job = _quietly(_started, _function_of, self)

    @functools.wraps(run)
    def run_item(self: Any, *args: Any) -> None:
        state = process.part(State)
        before, job = getattr(state.items, "job", None), getattr(self, _ATTRIBUTE, None)
        state.items.job = job
        try:
            run(self, *args)
        finally:
            state.items.job = before
            if job is not None:
                job.end()

    kind.__init__, kind.run = __init__, run_item


def _function_of(item: Any) -> Any:
    found = getattr(item, "fn", None)
    if found is None:  # from Python 3.14 on: function, arguments and keywords
        task = getattr(item, "task", None)
        found = task[0] if isinstance(task, tuple) and task else None
    return found


def _target_of(thread: threading.Thread) -> Any:
    target = getattr(thread, "_target", None)
    return type(thread).run if target is None else target


def _itself(coroutine: Any) -> Any:
    return coroutine


def _wrap_threads() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_thread(self: threading.Thread) -> None:
        job = _quietly(_started, _target_of, self)
        if job is not None and _ATTRIBUTE not in self.__dict__:
            job.owner = weakref.ref(self)
            self.__dict__[_ATTRIBUTE] = job
        start(self)

    threading.Thread.start = start_thread  # type: ignore[method-assign]


def _quietly(
    make: Callable[[Callable[[Any], Any], Any], Job], find: Callable[[Any], Any], given: Any
) -> Job | None:
    """Return a new job; None if that fails, which is reported once and does not stop the observed program.

    Objects of the observed program are read only in here.
    """
    try:
        return make(find, given)
    except Exception as error:
        say_once(f"a job is not followed: {error_kind(error)}", about="jobs")
        return None


def _name_of(function: Any) -> str:
    """Return the name of a callable or coroutine, without running any code of its class."""
    kind, is_method = type(function), False
    for _ in range(WRAPPERS_MAX):
        if kind is functools.partial:
            function = function.func
        elif kind is MethodType:
            function, is_method = function.__func__, True
        else:
            break
        kind = type(function)
    if kind is CoroutineType or kind is FunctionType:
        return str(function.__qualname__)
    # A method may be bound to any callable: a C function, or an object that has its function's name or none.
    found = inspect.getattr_static(function, "__qualname__", None) if is_method else None
    if type(found) is GetSetDescriptorType:
        found = found.__get__(function)
    return found if type(found) is str else str(_CLASS_NAME.__get__(kind))


_CLASS_NAME = type.__dict__["__name__"]  # a metaclass may have another one


def open_session(session_id: str) -> None:
    """Record the ends of jobs for a session, until `take_ended`."""
    state = process.part(State)
    with state.lock:
        state.sessions[session_id] = _Session()
        while len(state.sessions) > SESSIONS_MAX:
            take_ended(next(iter(state.sessions)))


def note_request(job: Job, session_id: str | None) -> None:
    """Record the end of a job for a session in which it makes a request.

    Nothing is kept if the session is not open in this process, or if the end of the job cannot be seen, as that of a
    thread.
    """
    state = process.part(State)
    if session_id is None or session_id in job.sessions:
        return
    task = job.owner() if job.owner is not None else None
    if job.owner is not None and not isinstance(task, asyncio.Future):
        return
    with state.lock:
        known = state.sessions.get(session_id)
        if known is None or job._is_over:
            return
        known.jobs.add(job)
        job.sessions |= {session_id}
    if task is not None:
        job.watch(task)


def take_ended(session_id: str) -> list[tuple[int, int]]:
    """Return the jobs of a session that have ended, as serial number and nanoseconds since 1970, and forget the
    session.

    Its running jobs forget it, too: what they do from now on is not recorded for it.
    """
    state = process.part(State)
    with state.lock:
        known = state.sessions.pop(session_id, None)
        if known is None:
            return []
        for job in known.jobs:
            job.sessions -= {session_id}
        return list(known.ended)
