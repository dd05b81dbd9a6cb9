"""The runtime: who answers in the place of the outside world, and what is shared by a whole process.

`current()` is what is in force. A replay puts another `Runtime` in its place with `replaced`, and restores the one
before it on any exit; so replays can be nested, and one hook replaces all. `process` holds what no replay replaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol, TypeVar, cast

from agentobs.records.exchanges import Answer, ModelExchange, Place, Question
from agentobs.world import World

Answerer = Callable[[Question, Place], Answer]
"""Answers a model request in the provider's place; may raise what the agent is to see."""
Noted = Callable[[str, Any, FrameType], None]
"""Is called with each read of patched code: the function, its result, and the caller."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Who answers. Every field that is None stands for the real thing."""

    answerer: Answerer | None = None
    """Answers model requests."""
    stopped: Callable[[], Exception] | None = None
    """Makes the exception for a client that reads on where the recorded client had stopped."""
    continues_live: bool = False
    """Whether the answerer may pass requests on to the provider, so that the session is recorded as usual."""
    identifies_callers: bool = True
    """Whether the callers of requests are recorded, which takes time."""
    functions: Any = None
    """Answers recorded functions: an `agentobs.determinism.functions.Answerer`."""
    ambient: Any = None
    """Clock, IDs and chance of every session: an `agentobs.tracing.ambient.Ambient`."""
    noted: Noted | None = None
    """Is called with each read of patched code, which then returns its real value."""
    transform: Callable[[World], World] | None = None
    """Makes the world of our agent loop from the live one."""
    _parts: dict[type, object] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_answered(self) -> bool:
        """Whether model requests are answered here, so that nothing is to be recorded."""
        return self.answerer is not None and not self.continues_live

    def part(self, kind: type[T]) -> T:
        """Return the state of a class that belongs to this runtime alone, made at first use.

        Args:
            kind: the class; called without arguments.
        """
        return cast(T, self._parts.get(kind) or self._parts.setdefault(kind, kind()))


def current() -> Runtime:
    """Return the runtime in force. It is the same in all threads: those that an agent starts are answered, too."""
    return process.runtime


@contextlib.contextmanager
def replaced(**changes: Any) -> Iterator[Runtime]:
    """Put a runtime in force that differs from the current one in some fields, as long as the context is open.

    Args:
        changes: fields of `Runtime`.
    """
    before = process.runtime
    process.runtime = dataclasses.replace(before, **changes, _parts={})
    try:
        yield process.runtime
    finally:
        process.runtime = before


def world_in_force(live: World) -> World:
    """Return the world that stands for a live one: itself, or what a replay makes of it."""
    transform = current().transform
    return live if transform is None else transform(live)


class Tape(Protocol):
    """What is collected of an exchange that has not ended."""

    @property
    def place(self) -> Place:
        """Where the exchange belongs."""

    def so_far(self) -> ModelExchange | None:
        """Return the exchange so far; None if it is no longer recorded."""


class Attendant(Protocol):
    """Is notified of each request, and may make the end of an answer wait until it is safe: the recorder."""

    def opened(self) -> None:
        """Note that an exchange has started; returns quickly."""

    def wait(self, seconds: float) -> bool:
        """Wait until what ended is safe, at most so long; return whether it is."""

    async def settle(self, seconds: float) -> bool:
        """Wait without blocking an event loop."""


class Process:
    """The state that a whole process shares, live or in a replay."""

    def __init__(self) -> None:
        """Start with the real world."""
        self.runtime = Runtime()
        self.attendant: Attendant | None = None
        """The recorder, while it records."""
        self.wait_seconds = 0.0
        """How long the end of an answer may wait for the attendant."""
        self.propagates = False
        """Whether requests carry the trace in which they are made."""
        self.open_tapes: weakref.WeakSet[Any] = weakref.WeakSet()
        """The tapes of exchanges that have not ended and are recorded."""
        self.listener: Callable[[ModelExchange], None] | None = None
        """Receives each exchange when it has ended, in the thread of its caller; in replays, too."""
        self.watched_tapes: weakref.WeakSet[Any] = weakref.WeakSet()
        """The tapes whose ends the listener receives."""
        self.span_place_outside: Callable[[], Place] | None = None
        """Returns the place of spans that are opened outside every session; None: they are not recorded."""
        self.place_outside: Callable[[], Place | None] | None = None
        """Returns the place of calls of recorded functions outside every session."""
        self._parts: dict[type, object] = {}

    def part(self, kind: type[T]) -> T:
        """Return the state of a class that this process keeps for a module, made at first use.

        Args:
            kind: the class; called without arguments.
        """
        return cast(T, self._parts.get(kind) or self._parts.setdefault(kind, kind()))

    def unfinished(self, session_id: str) -> list[ModelExchange]:
        """Return the watched exchanges of a session that have not ended, as they stand."""
        tapes: list[Tape] = listed(self.watched_tapes)
        found = [tape.so_far() for tape in tapes if tape.place.session_id == session_id]
        return [exchange for exchange in found if exchange is not None]


process = Process()


def listed(tapes: weakref.WeakSet[Any]) -> list[Any]:
    """Return the members of a set that other threads may be changing."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):  # another thread opened one meanwhile
            return list(tapes)
    return []
