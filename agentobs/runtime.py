"""The runtime: the replacements for the outside world, and the state of the process.

`current()` returns the active runtime. A replay replaces it with `replaced`, which restores the previous runtime on any
exit, so replays can be nested. `process` holds the state that no replay replaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, Protocol, TypeVar, cast

from agentobs.errors import error_kind, warn_once
from agentobs.records.exchanges import Answer, ModelExchange, Place, Question
from agentobs.world import World

Answerer = Callable[[Question, Place], Answer]
"""Answers an HTTP request in the provider's place; may raise the exception that the agent should get."""
ReadObserver = Callable[[str, Any, FrameType], None]
"""Is called for each call of a patched function: its name, its result, and the caller's frame."""
T = TypeVar("T")
Point = Literal["head", "end", "stop"]
"""Where a replayed response may be held back: `head` is before its headers, `end` is before its end, and `stop` is
where the recorded client stopped reading.
"""


class Gate(Protocol):
    """Holds back a response that is served in place of the provider."""

    def check(self, point: Point) -> float | None:
        """Return the seconds after which to check again, or None to continue; may raise to end the response."""

    def close(self) -> None:
        """Receive the notice that the response has continued, or is no longer needed."""


@dataclass(frozen=True, slots=True)
class ServedAnswer(Answer):
    """A response that an answerer serves in place of the provider. The additional fields control how it is served, and
    are never recorded.
    """

    retry_ms: float | None = None
    """How long the client waits before a retry, in milliseconds. If set, it overrides the headers of the response."""
    gate: Gate | None = field(default=None, repr=False, compare=False)
    """Holds the response back."""

    @classmethod
    def of(cls, answer: Answer, *, retry_ms: float | None = None) -> ServedAnswer:
        """Convert an answer to a served answer without a gate."""
        values = {each.name: getattr(answer, each.name) for each in dataclasses.fields(Answer)}
        return cls(**values, retry_ms=retry_ms)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The replacements for the outside world. If a field is None, the real outside world is used."""

    answerer: Answerer | None = None
    """Answers requests to the provider."""
    overread_error: Callable[[], Exception] | None = None
    """Creates the exception for a client that continues to read where the recorded client had stopped."""
    continues_live: bool = False
    """Whether the answerer may pass requests on to the provider, so that the session is recorded as usual."""
    consumer: Callable[[Any], None] | None = None
    """Receives every record that is emitted. Unless `continues_live` is set, no other consumer receives any."""
    identifies_callers: bool = True
    """Whether the callers of requests are recorded, which takes time."""
    functions: Any = None
    """Answers recorded functions: an `agentobs.determinism.functions.FunctionAnswerer`."""
    ambient: Any = None
    """Clock, IDs and random numbers of every session: an `agentobs.tracing.ambient.Ambient`."""
    read_observer: ReadObserver | None = None
    """Is called for each call of a patched function. While it is set, patched functions return their real values."""
    transform: Callable[[World], World] | None = None
    """Returns the world that the agent loop of agentobs uses in place of the live one."""
    fork_parent: Any = None
    """The session that a fork continues: an `agentobs.recording.lineage.Parent`."""
    _states: dict[type, object] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_answered(self) -> bool:
        """Whether requests to the provider are answered here, so that they are not recorded."""
        return self.answerer is not None and not self.continues_live

    def state(self, kind: type[T]) -> T:
        """Return the state that a module keeps for this runtime only; it is created at its first use.

        Args:
            kind: the class of the state, called without arguments.
        """
        return cast(T, self._states.get(kind) or self._states.setdefault(kind, kind()))


def current() -> Runtime:
    """Return the active runtime. It is the same in all threads, including those that an agent starts."""
    return process.runtime


@contextlib.contextmanager
def replaced(**changes: Any) -> Iterator[Runtime]:
    """Activate a runtime that differs from the current one in some fields, while the context is open.

    Args:
        changes: fields of `Runtime`.
    """
    before = process.runtime
    process.runtime = dataclasses.replace(before, **changes, _states={})
    try:
        yield process.runtime
    finally:
        process.runtime = before


def effective_world(live: World) -> World:
    """Return the world to use: the live world, or in a replay the world that replaces it."""
    transform = current().transform
    return live if transform is None else transform(live)


class OpenExchange(Protocol):
    """An exchange that is in progress, as it is being recorded."""

    @property
    def place(self) -> Place:
        """The place of the exchange."""

    def partial_exchange(self) -> ModelExchange | None:
        """Return the part of the exchange that has arrived; None if it is no longer recorded."""


class ExchangeObserver(Protocol):
    """Is notified of each request, and can delay the end of a response until the response is safely written."""

    def opened(self) -> None:
        """Receive the notice that an exchange has started; returns quickly."""

    def wait(self, seconds: float) -> bool:
        """Wait until the exchanges that have ended are safely written, at most `seconds`; return whether they are."""

    async def settle(self, seconds: float) -> bool:
        """Do the same as `wait` without blocking the event loop."""


class Process:
    """The state that all code of a process shares, live or in a replay."""

    def __init__(self) -> None:
        """Start with a runtime that uses the real outside world."""
        self.runtime = Runtime()
        self.exchange_observer: ExchangeObserver | None = None
        """The recorder, while it records."""
        self.wait_seconds = 0.0
        """The maximum time that the end of a response waits for `exchange_observer`. [s]"""
        self.propagates = False
        """Whether requests carry the trace context in which they are made."""
        self.open_exchanges: weakref.WeakSet[Any] = weakref.WeakSet()
        """The recorded exchanges that are in progress."""
        self.listener: Callable[[ModelExchange], None] | None = None
        """Receives each exchange when it has ended, in the caller's thread. It is also called in replays."""
        self.request_listeners: tuple[Callable[[Any], None], ...] = ()
        """Each one receives each recorded request when it is sent, in the caller's thread: an open exchange with
        `attempt_id`, `place`, `started_ns` and `request`. It must return quickly. It is removed if it raises an
        exception.
        """
        self.record_listeners: tuple[Callable[[Any, Any], None], ...] = ()
        """Each one receives each record with its facts when they were written, in the recorder's thread. It must
        return quickly. It is removed if it raises an exception.
        """
        self.watched_exchanges: weakref.WeakSet[Any] = weakref.WeakSet()
        """The exchanges in progress that `listener` receives when they end."""
        self.span_place_outside: Callable[[], Place] | None = None
        """Returns the place of spans that are opened outside every session; if None, such spans are not recorded."""
        self.place_outside: Callable[[], Place | None] | None = None
        """Returns the place to which calls of recorded functions outside of sessions belong."""
        self._states: dict[type, object] = {}

    def state(self, kind: type[T]) -> T:
        """Return the state that a module keeps for this process; it is created at its first use.

        Args:
            kind: the class of the state, called without arguments.
        """
        return cast(T, self._states.get(kind) or self._states.setdefault(kind, kind()))

    def note_request(self, exchange: Any) -> None:
        """Notify the recorder and the listeners that a request was sent; `exchange` is an open exchange."""
        if (observer := self.exchange_observer) is not None:
            observer.opened()
        for listener in self.request_listeners:
            if not _is_received(listener, exchange):
                self.request_listeners = without(self.request_listeners, listener)

    def note_record(self, record: Any, facts: Any) -> None:
        """Notify the listeners that a record was written, with its facts."""
        for listener in self.record_listeners:
            if not _is_received(listener, record, facts):
                self.record_listeners = without(self.record_listeners, listener)

    def unfinished(self, session_id: str) -> list[ModelExchange]:
        """Return the received parts of the watched exchanges of a session that are in progress."""
        watched: list[OpenExchange] = members(self.watched_exchanges)
        found = [each.partial_exchange() for each in watched if each.place.session_id == session_id]
        return [exchange for exchange in found if exchange is not None]


process = Process()


def members(values: weakref.WeakSet[Any]) -> list[Any]:
    """Return the members of a set that other threads may change at the same time."""
    for _ in range(100):
        with contextlib.suppress(
            RuntimeError
        ):  # another thread changed the set during the iteration
            return list(values)
    return []


def without(listeners: tuple[T, ...], listener: T) -> tuple[T, ...]:
    """Return the listeners except one."""
    return tuple(each for each in listeners if each != listener)


def _is_received(listener: Callable[..., None], *arguments: Any) -> bool:
    """Call a listener; return False if it raised an exception, which is reported and never reaches the agent."""
    try:
        listener(*arguments)
    except Exception as error:
        warn_once(f"a listener is removed, because it failed: {error_kind(error)}")
        return False
    return True
