"""The seam to everything outside: time, ids, chance, environment, tools and the provider.

This is the only module that reads a clock, makes an id, rolls dice or looks at the environment. The
agent loop gets a `World`; a replay hands it another one with the same shape, and no code can tell.
"""

from __future__ import annotations

import asyncio
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
    from anthropic import AsyncAnthropic


def now() -> int:
    """Return the wall clock in nanoseconds since 1970 (UTC)."""
    return time.time_ns()


def monotonic() -> int:
    """Return a clock in nanoseconds that never goes back; only differences mean something."""
    return time.monotonic_ns()


def process_cpu() -> int:
    """Return the CPU time that this process has used, in nanoseconds."""
    return time.process_time_ns()


def thread_cpu() -> int:
    """Return the CPU time that the calling thread has used, in nanoseconds."""
    return time.thread_time_ns()


def new_id() -> str:
    """Return a new id: 32 hex digits, the first 12 the millisecond (UUIDv7, RFC 9562 section 5.7).

    It has the form of an OpenTelemetry trace id; its last 16 digits are random.
    """
    high = (now() // 1_000_000) << 16 | 0x7000 | secrets.randbits(12)
    low = 0x8000_0000_0000_0000 | secrets.randbits(62)
    return f"{high:016x}{low:016x}"


_span_ids = _random.Random()
os.register_at_fork(after_in_child=_span_ids.seed)


def new_span_id() -> str:
    """Return a new id of a span: 16 hex digits. Not from the system's source of chance, which costs four times as much.

    Seeded anew in a forked process, and by nobody else: a program that seeds `random` has other ids in each run.
    """
    return f"{_span_ids.getrandbits(64) or 1:016x}"


def pause(seconds: float) -> None:
    """Wait so many seconds in this thread."""
    time.sleep(seconds)


def chance() -> float:
    """Return a number in [0, 1) for jitter and sampling."""
    return _random.random()


def stream(seed: str) -> _random.Random:
    """Return a source of chance that always gives the same for a seed."""
    return _random.Random(seed)


def zone_seconds() -> int:
    """Return how far local time is ahead of UTC now, in seconds."""
    return time.localtime().tm_gmtoff


def random_bytes(count: int) -> bytes:
    """Return so many random bytes, fit for a key."""
    return secrets.token_bytes(count)


def environ(name: str) -> str | None:
    """Return an environment variable, or None where it is unset or empty."""
    return os.environ.get(name) or None


def taken_environ(name: str) -> str | None:
    """Return an environment variable and take it out, so that no child has it; None where it is unset or empty."""
    return os.environ.pop(name, None) or None


def environment() -> dict[str, str]:
    """Return a copy of the whole environment, for a program that is to get most of it."""
    return dict(os.environ)


@contextlib.contextmanager
def lent_environ(name: str, value: str) -> Iterator[None]:
    """Set an environment variable where it is unset, for as long as the context is open."""
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
    """Set environment variables, whatever they were, for as long as the context is open."""
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
    """Return the id of this process."""
    return os.getpid()


def platform() -> str:
    """Return the platform as a label, such as `linux`."""
    return sys.platform


def python_version() -> str:
    """Return the interpreter's version, such as `3.11.7`."""
    return sys.version.split()[0]


class Abort:
    """A way to stop a run from outside; thread-safe.

    The loop looks at it at each event of a stream and after each batch of tools, and an answer that it
    waits for is interrupted. Every look names its point, so that a replay can stop at the recorded one.
    """

    def __init__(self) -> None:
        """Make one that has not stopped anything yet."""
        self._is_set = False
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._lock = (
            threading.RLock()
        )  # a signal handler may stop the run while its thread holds it

    def stop(self) -> None:
        """Stop every run that has this abort, from any thread; a second call changes nothing."""
        with self._lock:
            self._is_set = True
            waiting, self._waiting = self._waiting, set()
        for loop, future in waiting:
            with contextlib.suppress(
                RuntimeError
            ):  # the loop was closed: nobody waits there any more
                loop.call_soon_threadsafe(_wake, future)

    def clear(self) -> None:
        """Stop nothing any more: runs that start from now on go on."""
        with self._lock:
            self._is_set = False

    def under(self) -> Abort:
        """Return one for a run that this run starts: it stops with this one, and can be stopped alone."""
        return _Under(self)

    def reached(self, point: str, count: int) -> bool:
        """Return whether the run is to stop here.

        Args:
            point: the turn and where in it: `1:beginning`; an attempt, as in `1:asking:2`, `1:unsent:2`,
                `1:streaming:2` or `1:waiting:2` (for the next one); `1:dispatch`; a call, as in
                `1:call:toolu_1`, `1:hook:pre_tool_use:toolu_1`, `1:consent:toolu_1` or `1:tool:toolu_1`; `1:tools`.
            count: events of the stream that were seen, or batches of tools that have ended.
        """
        return self._is_set

    async def wait(self) -> None:
        """Return when the run is to stop where it waits."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        try:
            for each in self._line():
                with each._lock:
                    if each._is_set:
                        return
                    each._waiting.add((loop, future))
            await future
        finally:
            for each in self._line():
                with each._lock:
                    each._waiting.discard((loop, future))

    def _line(self) -> tuple[Abort, ...]:
        """Return everything that stops the run: this one, and those it lies under."""
        return (self,)


class _Under(Abort):
    """Stops one run, and so does the abort of the run that started it."""

    def __init__(self, above: Abort) -> None:
        """Lie under another one."""
        super().__init__()
        self._above = above

    def reached(self, point: str, count: int) -> bool:
        """Return whether the run is to stop here."""
        return self._is_set or self._above.reached(point, count)

    def _line(self) -> tuple[Abort, ...]:
        return (self, *self._above._line())


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def nobody(question: WorldQuestion) -> Any:
    """Answer for a world in which there is nobody: no consent, no word, no path inside any root."""
    match question.kind:
        case "consent":
            return {"behaviour": "deny", "by": "nobody"}
        case "path":
            return [{"path": path, "inside": False} for path in question.asked]
        case "steering" | "follow_up":
            return []
        case "tool_set":
            return list(question.asked)
        case "hook":
            return {"outcome": "cancelled", "reason": "nobody runs hooks here"}
        case "limit" | "background" | "elapsed" | "compacted":
            return question.asked
        case "keep":
            return None
        case "check" | "spent_today" | "abort" | "refresh" | "conversation" | "section" | "memory":
            return None
    assert_never(question.kind)


def _as_it_is(name: str, former: Sequence[str]) -> str:  # noqa: ARG001 - the port has two arguments
    return name


async def _nothing_left() -> None:
    """Wait for nothing: nothing works in the background."""


def _not_stopped(tool_use_id: str) -> None:
    """Leave a tool call alone."""


def _harmless(name: str) -> bool:  # noqa: ARG001 - the port has an argument
    return False


def _unknown(name: str) -> Callable[..., Any] | None:  # noqa: ARG001 - the port has an argument
    return None


def _billed(message: Mapping[str, Any]) -> bool:  # noqa: ARG001 - the port has an argument
    return True


def _unheard(sections: Sequence[tuple[str, str]]) -> None:
    """Listen to nothing."""


@dataclass(frozen=True, slots=True)
class World:
    """What an agent may ask of the outside, as one frozen bundle of plain callables."""

    client: AsyncAnthropic
    """The provider's client; its transport is where questions to the model are recorded."""
    run_tool: Callable[[ToolQuestion], Awaitable[ToolAnswer]]
    """Run one tool call and return its answer; never raises for a failing tool."""
    tool_name: Callable[[str, Sequence[str]], str] = _as_it_is
    """The name that a tool goes by, from its name and its former ones: a replay knows it by the recorded one."""
    stop_tool: Callable[[str], None] = _not_stopped
    """Stop a tool call by its id, begun or not: its answer then comes soon, `aborted` unless it was done."""
    ask: Callable[[WorldQuestion], Awaitable[Any]] = nobody
    """Answer a question that is neither the model's nor a tool's to answer, with a JSON value."""
    settled: Callable[[], Awaitable[None]] = _nothing_left
    """Return when nothing works in the background any more: hooks that nobody waits for, each within its time."""
    abort: Abort = field(default_factory=Abort)
    """Says whether the run is to stop."""
    is_mutating: Callable[[str], bool] = _harmless
    """Whether a tool is known to change something outside, by its name: a replay runs it only where it is named."""
    tool_function: Callable[[str], Callable[..., Any] | None] = _unknown
    """The function that a tool runs, by the tool's name; asked only where a report says in which line it is written."""
    sections: Callable[[Sequence[tuple[str, str]]], None] = _unheard
    """Hears the names and texts of the sections that the next system prompt of its lane is made of. A replay tells by
    them which one of them has changed."""
    is_billed: Callable[[Mapping[str, Any]], bool] = _billed
    """Whether an answer of the model is billed: what a fork replays costs nothing."""
    now: Callable[[], int] = now
    """Wall clock, nanoseconds since 1970."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Wait so many seconds."""
    new_id: Callable[[], str] = new_id
    """A new id of 32 hex digits."""
    random: Callable[[], float] = chance
    """A number in [0, 1)."""
