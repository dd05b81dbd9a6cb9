"""The interface to everything outside: time, IDs, randomness, environment, tools and the provider.

This is the only module that reads a clock, makes an ID, draws random numbers or reads the
environment. The agent loop gets a `World`; a replay passes another one with the same interface, and
no code can tell the difference.

asyncio is imported where it is needed, because commands that only read recordings take a tenth longer with it.
"""

from __future__ import annotations

import contextlib
import os
import random as _random
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from agentobs.records.exchanges import ToolAnswer, ToolQuestion, WorldQuestion

if TYPE_CHECKING:
    import asyncio

    from anthropic import AsyncAnthropic


def now() -> int:
    """Return the wall clock in nanoseconds since 1970 (UTC).

    While the clock is held (`hold_clock`), this is the time at which it was held plus the monotonic time since, so that
    a clock that is set changes neither the order of records nor durations.
    """
    held = _clock.held
    if held is None:
        return time.time_ns()
    found_ns = held.offset_ns + time.monotonic_ns()
    if time.time_ns() - found_ns > _SUSPENSION_MIN_NS:
        found_ns += _add_suspension(held)
    return found_ns


def wall() -> int:
    """Return the wall clock in nanoseconds since 1970 (UTC), as the file system uses it; it may jump at any time."""
    return time.time_ns()


def at(clock_ns: int) -> int:
    """Return the wall clock, as `now` returns it, at a recent time of the monotonic clock.

    All processes of a machine have the same monotonic clock. A time in the future, which only a process with another
    clock can report, becomes the current time.
    """
    return now() - max(0, monotonic() - clock_ns)


def monotonic() -> int:
    """Return a clock in nanoseconds that never goes backward; only differences are meaningful."""
    return time.monotonic_ns()


_SUSPENSION_MIN_NS = 1_000_000_000
"""Shorter suspensions are not noticed. Our choice."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The relation of the two clocks while the wall clock is held."""

    offset_ns: int
    """The wall clock minus the monotonic clock."""
    suspended_ns: int
    """How long the machine had been suspended since it started."""


class _Clock:
    """The wall clock of this process, which may be held."""

    def __init__(self) -> None:
        self.held: _Held | None = None
        """None if the clock is not held."""
        self.holders = 0
        """The number of calls of `hold_clock` that were not undone."""
        self.renew_lock()

    def renew_lock(self) -> None:
        """Replace the lock, which another thread may have held when this process was forked."""
        self.lock = threading.RLock()  # a signal handler may read the clock at any time


_clock = _Clock()
os.register_at_fork(after_in_child=_clock.renew_lock)


def hold_clock() -> None:
    """Make `now` advance with the monotonic clock until as many calls of `release_clock` follow.

    If it is held already, it is only set forward: to set it back would change the order of what others record.
    """
    with _clock.lock:
        found = _Held(time.time_ns() - time.monotonic_ns(), _suspended_ns())
        if _clock.held is None or time.time_ns() > now():
            _clock.held = found
        _clock.holders += 1


def release_clock() -> None:
    """Undo one call of `hold_clock`; after the last one, `now` is the wall clock again."""
    with _clock.lock:
        _clock.holders = max(0, _clock.holders - 1)
        if not _clock.holders:
            _clock.held = None


def _add_suspension(held: _Held) -> int:
    """Set the held clock forward by the time for which the machine was suspended since; return it in nanoseconds.

    The monotonic clock of Linux stands still during that time.
    """
    suspended_ns = _suspended_ns()
    added_ns = suspended_ns - held.suspended_ns
    if added_ns < _SUSPENSION_MIN_NS:
        return 0
    with _clock.lock:
        if _clock.held is held:
            _clock.held = _Held(held.offset_ns + added_ns, suspended_ns)
    return added_ns


def _suspended_ns() -> int:
    """Return how long the machine has been suspended since it started, in nanoseconds; 0 if that is unknown."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


def process_cpu() -> int:
    """Return the CPU time that this process has used, in nanoseconds."""
    return time.process_time_ns()


def thread_cpu() -> int:
    """Return the CPU time that the calling thread has used, in nanoseconds."""
    return time.thread_time_ns()


def new_id() -> str:
    """Return a new ID of 32 hex digits (UUIDv7, RFC 9562 section 5.7).

    The first 12 digits encode the time in milliseconds, and the last 16 are random. It has the form of an
    OpenTelemetry trace ID.
    """
    high = (now() // 1_000_000) << 16 | 0x7000 | secrets.randbits(12)
    low = 0x8000_0000_0000_0000 | secrets.randbits(62)
    return f"{high:016x}{low:016x}"


_span_ids = _random.Random()
os.register_at_fork(after_in_child=_span_ids.seed)


def new_span_id() -> str:
    """Return a new span ID of 16 hex digits.

    The digits come from a separate generator, because the random source of the operating system takes four times as
    long. This generator is reseeded only in a forked process, so a program that seeds `random` still gets different
    IDs in each run.
    """
    return f"{_span_ids.getrandbits(64) or 1:016x}"


def pause(seconds: float) -> None:
    """Block this thread for `seconds`."""
    time.sleep(seconds)


def chance() -> float:
    """Return a number in [0, 1) for jitter and sampling."""
    return _random.random()


def stream(seed: str) -> _random.Random:
    """Return a random generator that always produces the same sequence for a seed."""
    return _random.Random(seed)


def zone_seconds() -> int:
    """Return the current offset of local time from UTC, in seconds."""
    return time.localtime().tm_gmtoff


def random_bytes(count: int) -> bytes:
    """Return `count` random bytes, suitable for a key."""
    return secrets.token_bytes(count)


def has_threads() -> bool:
    """Return whether this interpreter can run background threads; isolated subinterpreters cannot."""
    try:
        threading.Thread(target=int, name="agentobs-check", daemon=True).start()
    except RuntimeError as error:
        # If the system has too few threads only now, the recorder starts its thread later.
        return "interpreter" not in str(error)
    return True


def environ(name: str) -> str | None:
    """Return an environment variable, or None if it is unset or empty."""
    return os.environ.get(name) or None


def pop_environ(name: str) -> str | None:
    """Return an environment variable and remove it, so that no child inherits it; None if it is unset or empty."""
    return os.environ.pop(name, None) or None


def environment() -> dict[str, str]:
    """Return a copy of all environment variables, for a child program."""
    return dict(os.environ)


@contextlib.contextmanager
def default_environ(name: str, value: str) -> Iterator[None]:
    """Set an environment variable if it is unset, while the context is open."""
    if environ(name) is not None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


@contextlib.contextmanager
def replaced_environ(values: Mapping[str, str]) -> Iterator[None]:
    """Override environment variables while the context is open."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def process_id() -> int:
    """Return the ID of this process."""
    return os.getpid()


def platform() -> str:
    """Return the platform as a label, such as `linux`."""
    return sys.platform


def python_version() -> str:
    """Return the interpreter's version, such as `3.11.7`."""
    return sys.version.split()[0]


class Abort:
    """Stops a run from outside; thread-safe.

    The loop checks it at each event of a stream and after each batch of tools, and a pending response is interrupted.
    Each check names its point, so that a replay can stop at the recorded point.
    """

    def __init__(self) -> None:
        """Create an abort that is not set."""
        self._is_set = False
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        # Reentrant, because a signal handler may stop the run while its own thread holds the lock.
        self._lock = threading.RLock()

    def stop(self) -> None:
        """Stop every run with this abort, from any thread; a second call has no effect."""
        with self._lock:
            self._is_set = True
            waiting, self._waiting = self._waiting, set()
        for loop, future in waiting:
            with contextlib.suppress(RuntimeError):  # the loop was closed, so nothing waits in it
                loop.call_soon_threadsafe(_wake, future)

    def clear(self) -> None:
        """Reset: runs that start from now on are not stopped."""
        with self._lock:
            self._is_set = False

    def child(self) -> Abort:
        """Return an abort for a child run, which stops if this abort is stopped, and can also be stopped separately."""
        return _ChildAbort(self)

    def should_stop(self, point: str, count: int) -> bool:
        """Return whether the run must stop at a point that it has reached.

        Args:
            point: the turn and the position in it: `1:beginning`; an attempt, as in `1:asking:2`,
                `1:unsent:2`, `1:streaming:2` or `1:waiting:2` (the wait before the next attempt); `1:dispatch`;
                a call, as in `1:call:toolu_1`, `1:hook:pre_tool_use:toolu_1`, `1:consent:toolu_1` or
                `1:tool:toolu_1`; `1:tools`.
            count: the number of stream events received so far, or of batches of tools that have ended.
        """
        return self._is_set

    async def wait(self) -> None:
        """Wait until the run must stop."""
        import asyncio  # noqa: PLC0415 - see above

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        try:
            for each in self._with_ancestors():
                with each._lock:
                    if each._is_set:
                        return
                    each._waiting.add((loop, future))
            await future
        finally:
            for each in self._with_ancestors():
                with each._lock:
                    each._waiting.discard((loop, future))

    def _with_ancestors(self) -> tuple[Abort, ...]:
        """Return all aborts that stop the run: this one, and its ancestors."""
        return (self,)


class _ChildAbort(Abort):
    """Stops a child run; the abort of the parent run also stops the child run."""

    def __init__(self, above: Abort) -> None:
        """Create a child of an abort."""
        super().__init__()
        self._parent = above

    def should_stop(self, point: str, count: int) -> bool:
        """Return whether the run must stop at a point that it has reached."""
        return self._is_set or self._parent.should_stop(point, count)

    def _with_ancestors(self) -> tuple[Abort, ...]:
        return (self, *self._parent._with_ancestors())


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


GATED_EVENTS = frozenset(
    {"user_prompt_submit", "pre_tool_use", "permission_request", "sub_agent_start"}
)
"""The events of hooks whose veto protects something outside of the agent. If such a hook cannot run, that is a veto.
A hook for `pre_compact` can also block, but a compaction that runs unchecked does no harm.
"""


def missing_hook_answer(payload: Mapping[str, Any], why: str) -> dict[str, str]:
    """Return the answer of a hook that cannot run: a veto if it is a gate, so that nothing happens unchecked."""
    is_gate = payload.get("event") in GATED_EVENTS and not payload.get("background")
    return {"outcome": "blocking" if is_gate else "cancelled", "reason": why}


async def answer_unattended(question: WorldQuestion) -> Any:
    """Answer a question without a user: deny approvals, deliver no messages, treat every path as outside the roots."""
    match question.kind:
        case "consent":
            return {"behavior": "deny", "resolver": "unattended"}
        case "path":
            return [{"path": path, "inside": False} for path in question.payload]
        case "steering" | "follow_up":
            return []
        case "tool_set":
            return list(question.payload)
        case "hook":
            return missing_hook_answer(question.payload, "this world does not run hooks")
        case "limit" | "background" | "elapsed" | "threshold" | "compacted" | "stored_messages":
            return question.payload
        case "keep":
            return None
        case "check" | "spent_today" | "abort" | "refresh" | "conversation" | "section" | "memory":
            return None
    assert_never(question.kind)


def _same_name(name: str, former: Sequence[str]) -> str:  # noqa: ARG001 - the port has two arguments
    return name


async def _do_nothing() -> None:
    """Return immediately: nothing runs in the background, and no connections are open."""


async def no_message() -> None:
    """Wait forever: no message arrives."""
    import asyncio  # noqa: PLC0415 - see above

    await asyncio.get_running_loop().create_future()


async def _sleep(seconds: float) -> None:
    import asyncio  # noqa: PLC0415 - see above

    await asyncio.sleep(seconds)


def _ignore_stop(tool_use_id: str) -> None:
    """Do nothing: the tool call continues."""


def _never_mutating(name: str) -> bool:  # noqa: ARG001 - the port has an argument
    return False


def _no_function(name: str) -> Callable[..., Any] | None:  # noqa: ARG001 - the port has an argument
    return None


def _always_billed(message: Mapping[str, Any]) -> bool:  # noqa: ARG001 - the port has an argument
    return True


def _ignore_sections(sections: Sequence[tuple[str, str]]) -> None:
    """Ignore the sections."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a live world can run. The loop compares it with the tools and the options of each run."""

    tools: Mapping[str, Any] = field(default_factory=dict)
    """The declarations of the tools, by name."""
    run_tool: object = None
    """The function that runs these tools; a world with another function may run others."""
    ask: object = None
    """The function that runs the hooks and answers all other questions; another function may answer others."""
    has_person: bool = False
    """Whether a person can be asked."""
    hooks: tuple[Any, ...] = ()
    """The table of hooks, of `agentobs.agent.hooks.Hook`."""
    sections: frozenset[str] = frozenset()
    """Names of the sections of the system prompt that functions write."""
    reads_spending: bool = False
    """Whether the world can return the amount that was spent today."""


@dataclass(frozen=True, slots=True)
class World:
    """The outside world of an agent, as one frozen bundle of plain callables."""

    client: AsyncAnthropic
    """The provider's client; LLM requests are recorded in its transport."""
    run_tool: Callable[[ToolQuestion], Awaitable[ToolAnswer]]
    """Execute one tool call and return its result; never raises for a failing tool."""
    tool_name: Callable[[str, Sequence[str]], str] = _same_name
    """Return the current name of a tool from its name and its aliases; a replay uses the recorded one."""
    stop_tool: Callable[[str], None] = _ignore_stop
    """Stop a tool call by its ID, started or not. Its result follows soon, with the outcome `aborted` unless the call
    was already finished.
    """
    ask: Callable[[WorldQuestion], Awaitable[Any]] = answer_unattended
    """Answer a question that goes to neither the model nor a tool, with a JSON value."""
    message_arrived: Callable[[], Awaitable[None]] = no_message
    """Wait until a steering message has arrived, without taking it. It only decides when running calls are stopped; a
    replay has their results, so it never waits for a message that was recorded.
    """
    settled: Callable[[], Awaitable[None]] = _do_nothing
    """Wait until all background hooks have ended; each has a timeout."""
    close_idle_connections: Callable[[], Awaitable[None]] = _do_nothing
    """Close the client's idle connections after a connection was lost, because they may also be dead. The next request
    then uses a new connection.
    """
    abort: Abort = field(default_factory=Abort)
    """Stops the run from outside."""
    is_mutating: Callable[[str], bool] = _never_mutating
    """Whether a tool, given by name, changes something outside the agent; a replay only runs such a tool if it is
    listed.
    """
    tool_function: Callable[[str], Callable[..., Any] | None] = _no_function
    """The function of a tool, by the tool's name; used only by reports that show its source line."""
    sections: Callable[[Sequence[tuple[str, str]]], None] = _ignore_sections
    """Receives the names and texts of the sections in the next system prompt of a lane, so that a replay can
    identify a section that has changed.
    """
    is_billed: Callable[[Mapping[str, Any]], bool] = _always_billed
    """Whether a response is billed: responses that a fork replays cost nothing."""
    now: Callable[[], int] = now
    """Wall clock, nanoseconds since 1970."""
    sleep: Callable[[float], Awaitable[None]] = _sleep
    """Wait for a number of seconds."""
    new_id: Callable[[], str] = new_id
    """A new ID of 32 hex digits."""
    random: Callable[[], float] = chance
    """A number in [0, 1)."""
    wiring: Wiring | None = None
    """What the world can run; None if it is not known, as in a world that answers from a recording."""
