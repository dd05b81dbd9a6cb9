"""Ambient: the clock, the ids and the chance that code inside a session may ask for, so that a replay gives the same.

    here = agentobs.world_here()
    here.now(), here.new_id(), here.random()

Chance comes from streams that are seeded once a session, one for each lane and each tool call in it. The clock moves
with the questions to the model: it stands at the instant of the last one of its lane, or of its answer, to the
millisecond. So nothing of it has to be recorded at each read, and it does not matter how often, or by whom, it is read.
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
from agentobs.runtime import current
from agentobs.tracing.places import place

Patch = Literal["time", "uuid", "random"]
"""What of the standard library can answer from the session."""

SEED_PARTS = 8
"""Of how many numbers of 16 bits a seed is made: no detector takes them for a secret."""
SESSIONS_MAX = 1_000
"""Of how many sessions something is kept. Our choice."""
STREAMS_MAX = 10_000
"""How many streams a session has; beyond that the oldest begins anew. Our choice."""
MILLISECOND_NS = 1_000_000


@dataclass(slots=True)
class Ambient:
    """What one session is given."""

    seed: tuple[int, ...]
    started_ns: int
    """When the session began, nanoseconds since 1970: where its clock begins."""
    zone_s: int = 0
    """How far local time is ahead of UTC, in seconds."""
    patch: frozenset[str] = frozenset()
    """What of the standard library answers from here as well: `time`, `uuid`, `random`."""
    asked: Callable[[Place], None] | None = None
    """Hears of the first time that something is asked for."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    pause: Callable[[float], None] = world.pause
    moves: bool = True
    """Whether the clock moves with what happens; in a replay it is moved."""
    _offsets: dict[str, int] = field(default_factory=dict)
    """Milliseconds after the start, by lane."""
    _streams: dict[tuple[str, str, str], random.Random] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def told(self) -> dict[str, Any]:
        """Return what is kept of it, as JSON."""
        return {"seed": [*self.seed], "zone_s": self.zone_s, "patch": sorted(self.patch)}

    def move(self, lane: str, offset_ms: int) -> None:
        """Move the clock of a lane to so many milliseconds after the start; it never goes back."""
        with self._lock:
            self._offsets[lane] = max(offset_ms, self._offsets.get(lane, 0))

    def offset_ms(self, lane: str) -> int:
        """Return where the clock of a lane stands, in milliseconds after the start."""
        return self._offsets.get(lane, 0)

    def now_ns(self, here: Place) -> int:
        """Return the clock of a lane; where nothing has happened in it, that of the one above."""
        self._note(here)
        lane = here.lane
        while lane not in self._offsets and "/" in lane:
            lane = lane.rpartition("/")[0]
        return self.started_ns + self._offsets.get(lane, 0) * MILLISECOND_NS

    def stream(self, here: Place, use: str) -> random.Random:
        """Return the stream of chance of a place for one use."""
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
            asked, self.asked = self.asked, None
            asked(here)


_key: ContextVar[str] = ContextVar("agentobs_key", default="")
"""The tool call that the caller is in."""
_sessions: dict[str, Ambient] = {}


@contextlib.contextmanager
def keyed(tool_use_id: str) -> Iterator[None]:
    """Be in a tool call: what is drawn there is drawn from a stream of its own."""
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
    """Note what a session is given."""
    _sessions[session_id] = ambient
    if len(_sessions) > SESSIONS_MAX:
        _sessions.pop(next(iter(_sessions)), None)


def ambient_of(session_id: str) -> Ambient | None:
    """Return what a session is given."""
    replayed: Ambient | None = current().ambient
    return replayed or _sessions.get(session_id)


def step(here: Place, at_ns: int) -> None:
    """Note that something was asked or answered in a lane at an instant: its clock stands there from now on."""
    ambient = ambient_of(here.session_id)
    if ambient is not None and ambient.moves:
        ambient.move(here.lane, (at_ns - ambient.started_ns) // MILLISECOND_NS)


@dataclass(frozen=True, slots=True)
class Here:
    """What is given where it was asked for: the clock, ids and chance; outside every session those of the machine."""

    _ambient: Ambient | None
    _place: Place | None

    def now(self) -> int:
        """Return the clock in nanoseconds since 1970 (UTC); inside a session it moves with what the model is asked."""
        if self._ambient is None or self._place is None:
            return world.now()
        return self._ambient.now_ns(self._place)

    def new_id(self) -> str:
        """Return a new id of 32 hex digits."""
        if self._ambient is None or self._place is None:
            return world.new_id()
        return f"{self._ambient.stream(self._place, 'id').getrandbits(128):032x}"

    def random(self) -> float:
        """Return a number in [0, 1)."""
        if self._ambient is None or self._place is None:
            return world.chance()
        return self._ambient.stream(self._place, "here").random()

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds; in a replay no time, or as much as its pace says."""
        await (self._ambient.sleep if self._ambient else asyncio.sleep)(seconds)

    def pause(self, seconds: float) -> None:
        """Do as `sleep`, without an event loop."""
        (self._ambient.pause if self._ambient else world.pause)(seconds)


def world_here() -> Here:
    """Return the clock, the ids and the chance of the session that the caller is in, which are the same in a replay."""
    here = place()
    return Here(ambient_of(here.session_id) if here is not None else None, here)
