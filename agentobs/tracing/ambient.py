"""Ambient values: the clock, IDs and random numbers for code inside a session, identical in a replay.

  here = agentobs.world_here()
  here.now(), here.new_id(), here.random()

Random values come from random streams: the session has one seed, and each lane and each tool call has its own stream.
The clock moves with the LLM requests: it shows the time of the last request or response of its lane, in milliseconds.
Individual reads therefore do not have to be recorded, and it does not matter how often or by which code the clock is
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from agentobs import world
from agentobs.records.exchanges import Place
from agentobs.records.facts import Event
from agentobs.records.labels import Label
from agentobs.runtime import current, process
from agentobs.sink import sink
from agentobs.tracing.places import place

Patch = Literal["time", "uuid", "random"]
"""The groups of standard library functions that can return the values of the session."""

SEED_PARTS = 8
"""The number of 16-bit numbers in a seed. Such short numbers are not mistaken for secrets."""
SESSIONS_MAX = 1_000
"""The maximum number of sessions whose sources are remembered. Our choice."""
STREAMS_MAX = 10_000
"""The maximum number of random streams per session; beyond this number, the oldest stream is forgotten, and starts
again if it is used. Our choice.
"""
MILLISECOND_NS = 1_000_000


@dataclass(slots=True)
class Ambient:
    """The sources of time, IDs and random numbers of one session."""

    seed: tuple[int, ...]
    """The seed of all random streams: `SEED_PARTS` numbers of 16 bits."""
    started_ns: int
    """The start of the session, in nanoseconds since 1970; its clock starts at this time."""
    utc_offset_s: int = 0
    """Offset of local time from UTC, in seconds."""
    patch: frozenset[str] = frozenset()
    """The patched modules of the standard library: `time`, `uuid`, `random`."""
    on_first_use: Callable[[Place], None] | None = None
    """Called when the clock or a random stream is used for the first time."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    pause: Callable[[float], None] = world.pause
    moves: bool = True
    """Whether the clock moves with requests and responses; in a replay it is moved explicitly."""
    _offsets: dict[str, int] = field(default_factory=dict)
    """The clock of each lane, in milliseconds after the start of the session."""
    _streams: dict[tuple[str, str, str], random.Random] = field(default_factory=dict)
    """The random streams, by lane, tool call and purpose."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def to_json(self) -> dict[str, Any]:
        """Return the recorded values, as JSON values."""
        return {
            "seed": [*self.seed],
            "utc_offset_s": self.utc_offset_s,
            "patch": sorted(self.patch),
        }

    def move(self, lane: str, offset_ms: int) -> None:
        """Move the clock of a lane to `offset_ms` after the start; it never moves back."""
        with self._lock:
            self._offsets[lane] = max(offset_ms, self._offsets.get(lane, 0))

    def offset_ms(self, lane: str) -> int:
        """Return the clock of a lane, in milliseconds after the start."""
        return self._offsets.get(lane, 0)

    def now_ns(self, here: Place) -> int:
        """Return the clock of a lane in nanoseconds since 1970; before the lane's first request, the clock of its
        parent lane.
        """
        self._note_use(here)
        lane = here.lane
        while lane not in self._offsets and "/" in lane:
            lane = lane.rpartition("/")[0]
        return self.started_ns + self._offsets.get(lane, 0) * MILLISECOND_NS

    def stream(self, here: Place, purpose: str) -> random.Random:
        """Return the random stream of a place for one purpose."""
        self._note_use(here)
        key = here.lane, _key.get(), purpose
        with self._lock:
            known = self._streams.get(key)
            if known is None:
                known = self._streams[key] = world.stream(" ".join(map(str, (self.seed, *key))))
                if len(self._streams) > STREAMS_MAX:
                    del self._streams[next(iter(self._streams))]
            return known

    def _note_use(self, here: Place) -> None:
        if self.on_first_use is not None:
            callback, self.on_first_use = self.on_first_use, None
            callback(here)


_key: ContextVar[str] = ContextVar("agentobs_key", default="")
"""The ID of the current tool call."""


class State:
    """The sources of the sessions of this process, by session ID."""

    def __init__(self) -> None:
        self.sessions: dict[str, Ambient] = {}


@contextlib.contextmanager
def keyed(tool_use_id: str) -> Iterator[None]:
    """Use the random streams of a tool call while the context is active."""
    token = _key.set(tool_use_id)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the context manager is exited in another context
            _key.reset(token)


def new_seed() -> tuple[int, ...]:
    """Return a random seed for a session."""
    data = world.random_bytes(2 * SEED_PARTS)
    return tuple(int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))


def begin(session_id: str, ambient: Ambient) -> None:
    """Register the sources of a session."""
    state = process.state(State)
    state.sessions[session_id] = ambient
    if len(state.sessions) > SESSIONS_MAX:
        state.sessions.pop(next(iter(state.sessions)), None)


def ambient_of(session_id: str) -> Ambient | None:
    """Return the sources of a session; None if they are unknown. A replay returns its own sources."""
    state = process.state(State)
    replayed: Ambient | None = current().ambient
    return replayed or state.sessions.get(session_id)


def step(here: Place, at_ns: int) -> None:
    """Move the clock of a lane to the time of a request or response."""
    ambient = ambient_of(here.session_id)
    if ambient is not None and ambient.moves:
        ambient.move(here.lane, (at_ns - ambient.started_ns) // MILLISECOND_NS)


@dataclass(frozen=True, slots=True)
class Here:
    """The clock, IDs and random numbers at a place; outside a session, those of the machine."""

    _ambient: Ambient | None
    _place: Place | None

    def now(self) -> int:
        """Return the time in nanoseconds since 1970 (UTC). Inside a session, the clock moves with the LLM requests."""
        if self._ambient is None or self._place is None:
            return world.now()
        return self._ambient.now_ns(self._place)

    def new_id(self) -> str:
        """Return a new ID of 32 hex digits."""
        if self._ambient is None or self._place is None:
            return world.new_id()
        return f"{self._ambient.stream(self._place, 'id').getrandbits(128):032x}"

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        if self._ambient is None or self._place is None:
            return world.chance()
        return self._ambient.stream(self._place, "here").random()

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`. A replay does not wait, unless it has a pace."""
        await (self._ambient.sleep if self._ambient else asyncio.sleep)(seconds)

    def pause(self, seconds: float) -> None:
        """Wait like `sleep`, but block the thread."""
        (self._ambient.pause if self._ambient else world.pause)(seconds)


def world_here() -> Here:
    """Return the clock, IDs and random numbers of the current session, which are identical in a replay."""
    here = place()
    return Here(ambient_of(here.session_id) if here is not None else None, here)


def note_read(here: Place) -> None:
    """Emit an event that a session has used its clock, IDs or random numbers, so that a replay needs them."""
    sink.emit(
        Event(
            session_id=here.session_id,
            interaction_id=here.interaction_id,
            lane=Label("main"),
            turn=None,
            at_ns=world.now(),
            kind=Label("world_read"),
            label=None,
            numbers={},
        )
    )
