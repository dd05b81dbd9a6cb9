"""The clock, IDs and randomness for code inside a session, identical in a replay.

  here = agentobs.world_here()
  here.now(), here.new_id(), here.random()

Random values come from streams seeded once per session, one for each lane and each tool call in it.
The clock moves with the LLM requests: it shows the time of the last request or response of its
lane, in milliseconds. Single reads therefore do not have to be recorded, and it does not matter how
often, or by which code, it is read.
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
"""The standard library functions that can be answered from the session."""

SEED_PARTS = 8
"""How many 16-bit numbers a seed has. No secret detector matches them."""
SESSIONS_MAX = 1_000
"""How many sessions are remembered. Our choice."""
STREAMS_MAX = 10_000
"""Maximum streams per session; beyond that the oldest starts over. Our choice."""
MILLISECOND_NS = 1_000_000


@dataclass(slots=True)
class Ambient:
    """The sources of time, IDs and randomness of one session."""

    seed: tuple[int, ...]
    started_ns: int
    """When the session started, nanoseconds since 1970; its clock starts there."""
    utc_offset_s: int = 0
    """Offset of local time from UTC, in seconds."""
    patch: frozenset[str] = frozenset()
    """The standard library modules answered from here as well: `time`, `uuid`, `random`."""
    asked: Callable[[Place], None] | None = None
    """Called at the first use."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    pause: Callable[[float], None] = world.pause
    moves: bool = True
    """Whether the clock moves with events; in a replay it is moved explicitly."""
    _offsets: dict[str, int] = field(default_factory=dict)
    """Milliseconds after the start, by lane."""
    _streams: dict[tuple[str, str, str], random.Random] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def told(self) -> dict[str, Any]:
        """Return the recorded part, as JSON."""
        return {
            "seed": [*self.seed],
            "utc_offset_s": self.utc_offset_s,
            "patch": sorted(self.patch),
        }

    def move(self, lane: str, offset_ms: int) -> None:
        """Move the clock of a lane to `offset_ms` after the start; it never goes back."""
        with self._lock:
            self._offsets[lane] = max(offset_ms, self._offsets.get(lane, 0))

    def offset_ms(self, lane: str) -> int:
        """Return the clock of a lane, in milliseconds after the start."""
        return self._offsets.get(lane, 0)

    def now_ns(self, here: Place) -> int:
        """Return the clock of a lane, or that of its parent lane if nothing has happened in it."""
        self._note(here)
        lane = here.lane
        while lane not in self._offsets and "/" in lane:
            lane = lane.rpartition("/")[0]
        return self.started_ns + self._offsets.get(lane, 0) * MILLISECOND_NS

    def stream(self, here: Place, use: str) -> random.Random:
        """Return the random stream of a place for one purpose."""
        self._note(here)
        key = here.lane, _key.get(), use
        with self._lock:
            known = self._streams.get(key)
            if known is None:
                known = self._streams[key] = world.stream(" ".join(map(str, (self.seed, *key))))
                if len(self._streams) > STREAMS_MAX:
                    del self._streams[next(iter(self._streams))]
            return known

    def _note(self, here: Place) -> None:
        if self.asked is not None:
            callback, self.asked = self.asked, None
            callback(here)


_key: ContextVar[str] = ContextVar("agentobs_key", default="")
"""The current tool call."""


class State:
    """The sources of the sessions of this process."""

    def __init__(self) -> None:
        self.sessions: dict[str, Ambient] = {}


@contextlib.contextmanager
def keyed(tool_use_id: str) -> Iterator[None]:
    """Enter a tool call, which has its own random streams."""
    token = _key.set(tool_use_id)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # closed in another context
            _key.reset(token)


def new_seed() -> tuple[int, ...]:
    """Return a seed for a session."""
    data = world.random_bytes(2 * SEED_PARTS)
    return tuple(int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))


def begin(session_id: str, ambient: Ambient) -> None:
    """Register the sources of a session."""
    state = process.part(State)
    state.sessions[session_id] = ambient
    if len(state.sessions) > SESSIONS_MAX:
        state.sessions.pop(next(iter(state.sessions)), None)


def ambient_of(session_id: str) -> Ambient | None:
    """Return the sources of a session."""
    state = process.part(State)
    replayed: Ambient | None = current().ambient
    return replayed or state.sessions.get(session_id)


def step(here: Place, at_ns: int) -> None:
    """Move the clock of a lane to the instant of a request or response."""
    ambient = ambient_of(here.session_id)
    if ambient is not None and ambient.moves:
        ambient.move(here.lane, (at_ns - ambient.started_ns) // MILLISECOND_NS)


@dataclass(frozen=True, slots=True)
class Here:
    """The clock, IDs and randomness at a place; outside a session those of the machine."""

    _ambient: Ambient | None
    _place: Place | None

    def now(self) -> int:
        """Return the clock in nanoseconds since 1970 (UTC); inside a session it moves with the LLM requests."""
        if self._ambient is None or self._place is None:
            return world.now()
        return self._ambient.now_ns(self._place)

    def new_id(self) -> str:
        """Return a new ID of 32 hex digits."""
        if self._ambient is None or self._place is None:
            return world.new_id()
        return f"{self._ambient.stream(self._place, 'id').getrandbits(128):032x}"

    def random(self) -> float:
        """Return a number in [0, 1)."""
        if self._ambient is None or self._place is None:
            return world.chance()
        return self._ambient.stream(self._place, "here").random()

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`; in a replay not at all, or according to its pace."""
        await (self._ambient.sleep if self._ambient else asyncio.sleep)(seconds)

    def pause(self, seconds: float) -> None:
        """Wait like `sleep`, without an event loop."""
        (self._ambient.pause if self._ambient else world.pause)(seconds)


def world_here() -> Here:
    """Return the clock, IDs and randomness of the current session, which are identical in a replay."""
    here = place()
    return Here(ambient_of(here.session_id) if here is not None else None, here)


def note_read(here: Place) -> None:
    """Note that a session has used its recorded clock, IDs or random numbers."""
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
