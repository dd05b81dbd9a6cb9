"""Jobs: the asyncio tasks, pool work items and threads that make requests, and which job started which.

The code determines the order of two requests of the same job. Requests of two different jobs only have a fixed order if
one job was started by the other, or after the other had finished. The requests alone do not show this, because jobs
that may overlap do not always overlap. A replay also needs to know which of several equal jobs sent a request: the code
determines the order in which a job starts other jobs, but not the order in which they run.

Neither asyncio nor `concurrent.futures` exposes which task started a task or work item. Therefore the three functions
that create tasks, work items and threads are wrapped, once per process. The function, result and exceptions of a task,
work item or thread do not change.
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
from agentobs.errors import error_kind, warn_once
from agentobs.runtime import process

DEPTH_MAX = 16
"""The maximum number of ancestors of a job that are recorded. Our choice."""
ENDED_MAX = 10_000
"""The maximum number of job ends that are kept for one session. Our choice."""
SESSIONS_MAX = 10_000
"""The maximum number of open sessions for which job ends are kept. Our choice."""

VALUES_MAX = 32
"""The maximum number of arguments that a job keeps from the functions that started it and its ancestors. Our choice."""
WRAPPERS_MAX = 16
"""The maximum number of partials and methods around a function that are unwrapped for its name. Our choice."""

Values = tuple[tuple[Any, ...], ...]
"""For each argument: the function, the name, the value, and the objects that hold it, see `callers`."""
Step = tuple[str, int, int, int]
"""The name of a job's function, the job's number among its parent's jobs of that name, its start in nanoseconds since
1970 (0 if unknown), and its serial number.
"""

_ATTRIBUTE = "_agentobs_job"  # `_attach` uses the name literally, because it runs for each task
"""The name of the attribute that refers to the job of a task, a work item or a thread."""


class Job:
    """A task, a work item of a pool or a thread."""

    # A job is created for each task and work item of the process. To save time, values that rarely change are class
    # attributes.
    last_attempt: str | None = None
    """The last attempt of the job; before its first attempt, the last attempt of its parent when the job was started.
    """
    values: Values = ()
    """The arguments of the functions that started the job and its ancestors."""
    is_worker = False
    """Whether the job takes its work from a queue."""
    owner: Callable[[], Any] | None = None
    """A weak reference to the task or thread; None for a work item."""
    sessions: frozenset[str] = frozenset()
    """The open sessions for which the end of the job is recorded."""
    _counts: dict[str, int] | None = None
    _is_over = _is_watched = False

    def __init__(self, parent: Job | None, name: str, started_ns: int = 0) -> None:
        """Create a job that starts now.

        Args:
            parent: the job that started this one; None if unknown.
            name: the name of the function that the job runs; empty if unknown.
            started_ns: when the job was started, in nanoseconds since 1970; 0 if unknown.
        """
        self.serial = serial = next(process.state(State).serials)
        if parent is None:
            self.steps: tuple[Step, ...] = ((name, 0, started_ns, serial),)
            return
        above = parent.steps
        if len(above) >= DEPTH_MAX:
            # Ancestors are not referenced, because an endless chain of jobs must not keep all of them alive.
            above = above[1 - DEPTH_MAX :]
        if parent.last_attempt is not None:
            self.last_attempt, self.values = parent.last_attempt, parent.values
        counts = parent._counts
        if counts is None:
            counts = parent._counts = {}
        number = counts[name] = counts.get(name, -1) + 1
        self.steps = (*above, (name, number, started_ns, serial))

    @property
    def path(self) -> tuple[tuple[str, int, int], ...]:
        """The element, start and serial number of each ancestor, outermost first, and of the job itself.

        The element consists of a digest of the job's name, and the job's number among the jobs of that name that its
        parent has started since the parent's last request. The element is empty if the name is unknown: such a job is
        only noticed when it sends a request, so its number would depend on chance.
        """
        return tuple(
            (f"{_digest(name)}.{number}" if name else "", started_ns, serial)
            for name, number, started_ns, serial in self.steps
        )

    def note_attempt(self, attempt_id: str) -> str | None:
        """Note an attempt of this job, and return the previous attempt."""
        previous, self.last_attempt = self.last_attempt, attempt_id
        self._counts = None
        return previous

    def forget_counts(self) -> None:
        """Reset the counts of the jobs that this job has started."""
        self._counts = None

    def end(self) -> None:
        """Note for all sessions of this job that are still open that the job has ended."""
        state = process.state(State)
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
        """Note the end of the job when its task is done."""
        if not self._is_watched:
            self._is_watched = True
            task.add_done_callback(lambda _: self.end())

    @property
    def is_over(self) -> bool:
        """Whether the job has returned or raised an exception."""
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
        """Its attribute `job` is the job of the work item that the current thread runs."""
        self.starter_arguments: Callable[[Any], tuple[Values, bool]] | None = None
        """Returns the arguments of the functions on a stack, and whether these functions take work from a queue."""
        self.sessions: OrderedDict[str, _Session] = OrderedDict()
        """The open sessions of this process, by ID."""
        self.begin()

    def begin(self) -> None:
        """Start with new serial numbers and a new lock; called again in a forked child process."""
        self.serials = itertools.count((os.getpid() << 32) + 1)
        """The serial numbers of jobs, which are different in each process of a session."""
        self.lock = threading.RLock()
        """Reentrant, because a signal handler may send a request while its own thread holds the lock."""


_context_job: ContextVar[Job | None] = ContextVar("agentobs_job", default=None)


@functools.lru_cache(maxsize=4096)
def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()


def current(*, may_root: bool = False) -> Job | None:
    """Return the current job; None if it is unknown.

    Args:
        may_root: whether a new job may be created for this thread, because it is known to run only one job.
    """
    state = process.state(State)
    task = _current_task()
    if task is not None:
        return _job_of_task(task)
    item: Job | None = getattr(state.items, "job", None)
    if item is not None:
        return item
    thread, inherited = threading.current_thread(), _context_job.get()
    if inherited is not None and _is_owned(inherited, thread):
        return inherited
    is_foreign = _is_foreign(thread)
    thread_job: Job | None = None if is_foreign else thread.__dict__.get(_ATTRIBUTE)
    if (
        inherited is not None
        and inherited is not thread_job
        and not _is_child(thread_job, inherited)
    ):
        # This is a worker thread of a library, which runs the function in a copy of the caller's context.
        return _adopt(inherited, thread)
    if thread_job is not None:
        return thread_job
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


def _job_of_task(task: Any) -> Job:
    known: Job | None = getattr(task, _ATTRIBUTE, None)
    if known is not None:
        return known
    inherited = _context_job.get()
    if inherited is not None and inherited.owner is None:
        return inherited  # a task that runs before `create_task` has returned
    return _adopt(inherited, task)


def _adopt(parent: Job | None, owner: Any) -> Job:
    """Return a new job for a task or thread; it is not known which function started it."""
    job = Job(parent, "")
    job.owner = weakref.ref(owner)
    if isinstance(owner, threading.Thread):
        _context_job.set(job)
    else:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(owner, _ATTRIBUTE, job)
    return job


def _is_child(job: Job | None, parent: Job) -> bool:
    return job is not None and len(job.steps) > 1 and job.steps[-2][3] == parent.serial


def _is_owned(job: Job, thread: threading.Thread) -> bool:
    return job.owner is not None and job.owner() is thread


def _is_foreign(thread: threading.Thread) -> bool:
    """Return whether a thread is a worker of a library, so that it may run jobs of different parents."""
    kind = type(thread)
    if kind is threading.Thread:
        target = getattr(thread, "_target", None)
        return getattr(target, "__module__", "") in _POOL_MODULES
    return kind.__module__.partition(".")[0] in _POOL_PACKAGES


_POOL_MODULES = ("concurrent.futures.thread", "multiprocessing.pool", "multiprocessing.dummy")
_POOL_PACKAGES = ("multiprocessing", "anyio", "joblib")


_now = world.now


def _start_job(find: Callable[[Any], Any], argument: Any) -> Job:
    """Return a new job that the current job starts.

    Args:
        find: returns the function that the job runs.
        argument: the argument of `find`.
    """
    state = process.state(State)
    parent = current()
    job = Job(parent, _name_of(find(argument)), _now())
    if (
        parent is not None
        and parent.last_attempt is not None
        and state.starter_arguments is not None
    ):
        values, takes_work = state.starter_arguments(sys._getframe(2))
        job.values = (*values, *job.values)[:VALUES_MAX]
        parent.is_worker = parent.is_worker or takes_work
    return job


def install(starter_arguments: Callable[[Any], tuple[Values, bool]]) -> None:
    """Start to track the parent of each new job of this process; later calls have no effect.

    Args:
        starter_arguments: returns the arguments of the functions on a stack, from a frame outward, and whether these
            functions take work from a queue.
    """
    state = process.state(State)
    with state.lock:
        if state.starter_arguments is not None:
            return
        state.starter_arguments = starter_arguments
        _wrap_tasks()
        _wrap_work_items()
        _wrap_threads()


def begin() -> None:
    """Forget what the current job did before a session begins: a replay runs only the code of the session.

    Its started jobs are counted from 0 again, and a queue from which it took work in an earlier session does not count.
    """
    job = current(may_root=True)
    if job is not None:
        job.forget_counts()
        job.is_worker = False


class _Session:
    """The jobs of an open session."""

    __slots__ = ("ended", "jobs")

    def __init__(self) -> None:
        self.jobs: set[Job] = set()
        """The running jobs whose end is recorded for the session."""
        self.ended: deque[tuple[int, int]] = deque(maxlen=ENDED_MAX)
        """The serial numbers of jobs of the session that have ended, and the times at which they ended."""


def _reset_after_fork() -> None:
    """Reset serial numbers and the lock in a child process; a thread that no longer exists may hold the lock."""
    state = process.state(State)
    state.begin()
    state.sessions.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _wrap_tasks() -> None:
    create = BaseEventLoop.create_task

    @functools.wraps(create)
    def create_task(self: Any, coro: Any, **options: Any) -> Any:
        job = _quietly(_start_job, _identity, coro)
        if job is None:
            return create(self, coro, **options)
        token = _context_job.set(job)
        try:
            task = create(self, coro, **options)
        finally:
            _context_job.reset(token)
        # If this fails, the task is of another kind, and its job can only be found through its context.
        with contextlib.suppress(Exception):
            _attach(job, task, self._debug)
        return task

    BaseEventLoop.create_task = create_task  # type: ignore[method-assign]


def _attach(job: Job, task: Any, debug: bool) -> None:
    """Connect a job and the task that runs it."""
    job.owner = weakref.ref(task)
    task._agentobs_job = job
    if job.sessions:  # an eager task may send requests before `create_task` returns it
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
        self._agentobs_job = _quietly(_start_job, _function_of, self)

    @functools.wraps(run)
    def run_item(self: Any, *args: Any) -> None:
        state = process.state(State)
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


def _identity(coroutine: Any) -> Any:
    return coroutine


def _wrap_threads() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_thread(self: threading.Thread) -> None:
        job = _quietly(_start_job, _target_of, self)
        if job is not None and _ATTRIBUTE not in self.__dict__:
            job.owner = weakref.ref(self)
            self.__dict__[_ATTRIBUTE] = job
        start(self)

    threading.Thread.start = start_thread  # type: ignore[method-assign]


def _quietly(
    make: Callable[[Callable[[Any], Any], Any], Job], find: Callable[[Any], Any], argument: Any
) -> Job | None:
    """Return a new job; None if that fails. A failure is reported once and does not stop the observed program.

    Objects of the observed program are read only inside this function.
    """
    try:
        return make(find, argument)
    except Exception as error:
        warn_once(f"a job is not tracked: {error_kind(error)}", about="jobs")
        return None


def _name_of(function: Any) -> str:
    """Return the name of a callable or coroutine, without calling code of its class."""
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
    # A method may wrap any callable: a C function, or an object with or without the name of its function.
    found = inspect.getattr_static(function, "__qualname__", None) if is_method else None
    if type(found) is GetSetDescriptorType:
        found = found.__get__(function)
    return found if type(found) is str else str(_CLASS_NAME.__get__(kind))


_CLASS_NAME = type.__dict__["__name__"]  # a metaclass may override `__name__`


def open_session(session_id: str) -> None:
    """Record the ends of jobs for a session, until `close_session` is called."""
    state = process.state(State)
    with state.lock:
        state.sessions[session_id] = _Session()
        while len(state.sessions) > SESSIONS_MAX:
            close_session(next(iter(state.sessions)))


def note_request(job: Job, session_id: str | None) -> None:
    """Record that a job sends a request in a session, so that the end of the job is recorded for the session.

    Nothing is recorded if the session is not open in this process, or if the end of the job cannot be observed, as for
    a thread.
    """
    state = process.state(State)
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


def close_session(session_id: str) -> list[tuple[int, int]]:
    """Forget a session, and return its jobs that have ended: serial number, and end in nanoseconds since 1970.

    The ends of jobs that are still running are not recorded for the session.
    """
    state = process.state(State)
    with state.lock:
        known = state.sessions.pop(session_id, None)
        if known is None:
            return []
        for job in known.jobs:
            job.sessions -= {session_id}
        return list(known.ended)


def end_of(session_id: str, serial: int) -> int | None:
    """Return when a job of an open session ended, in nanoseconds since 1970; None if it has not, or is unknown."""
    state = process.state(State)
    with state.lock:
        known = state.sessions.get(session_id)
        ended = reversed(known.ended) if known is not None else ()
        return next((at_ns for each, at_ns in ended if each == serial), None)
