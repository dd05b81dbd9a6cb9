"""Turns: answers that were in flight together end in the order in which they ended when they were recorded.

Which of several requests was answered first decides the path of an agent that waits for the first of them. Replayed
answers come at once, so that each waits for those that came before it. What is waited for may never be asked, where
the code was changed: as soon as nothing else can happen any more, or after the deadline, that is a divergence.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agentobs import world
from agentobs.records.exchanges import Point
from replay.divergence import DivergenceError
from replay.fixture import Ask
from replay.lanes import Lane
from replay.state import State

SETTLED_LOOKS = 32
"""How many times others come to run after an answer has ended, before the next one does: a task whose request is
answered has ended by then, and whoever waits for it goes on. Our choice: each layer of tasks takes two or three."""
SETTLED_NS = 20_000_000
"""How long threads get in the same case, in nanoseconds. Our choice."""
QUICK_LOOKS = 300
LOOK_SECONDS = 0.002
"""After how many looks there is a pause between two, and how long. Our choice."""
IDLE_LOOKS = 64
IDLE_NS = 1_000_000_000
"""How many times in a row nothing else is to run in the event loop, and for how long nothing has come from the agent,
before nothing is expected to. Our choice."""


class Turn:
    """Holds an answer back until those that ended before it have been given."""

    def __init__(
        self, state: State, lane: Lane, ask: Ask, error: Callable[[list[int]], DivergenceError]
    ) -> None:
        """Hold the answer of `ask`; `error` makes what is raised where it waits in vain."""
        self._state, self._lane, self._ask, self._error = state, lane, ask, error
        self._looks = self._idle = self._settled = 0
        self._since_ns = 0

    def look(self, point: Point) -> float | None:
        """Return after how many seconds to look again, or None where the answer may go on.

        Raises:
            DivergenceError: there is one, or those that it waits for do not come.
        """
        state = self._state
        state.raise_divergence()
        if state.beyond:
            return None  # others may never be answered
        if point == "stop":
            return None if self._is_left(state) else self._pause()
        before = self._ask.behind | (self._ask.ends_behind if point == "end" else frozenset())
        missing = sorted(before - state.ended)
        if not missing and not (point == "end" and self._has_others()):
            return self._settling() if before else None
        if not self._is_left(state):
            return self._pause()
        if missing:
            raise self._error(missing)
        return None  # what was asked beside it is not asked any more: that is told at the end

    def _has_others(self) -> bool:
        """Return whether something is still to be asked that had been asked when the answer ended."""
        return self._ask.amid is not None and self._lane.lacks(self._ask.amid)

    def _settling(self) -> float | None:
        """Give the others time to go on with their answers."""
        self._state.waiting.discard(id(self))
        if not self._settled:
            self._since_ns = world.monotonic()
        self._settled += 1
        if _loop() is not None:
            return 0.0 if self._settled <= SETTLED_LOOKS else None
        over = world.monotonic() - self._since_ns >= SETTLED_NS
        return None if over else LOOK_SECONDS

    def _pause(self) -> float:
        self._looks, self._settled = self._looks + 1, 0
        return 0.0 if self._looks < QUICK_LOOKS and _loop() is not None else LOOK_SECONDS

    def _is_left(self, state: State) -> bool:
        """Return whether nothing comes any more that it might wait for."""
        state.waiting.add(id(self))
        self._idle = self._idle + 1 if _is_idle(len(state.waiting), state.threads) else 0
        late = state.idle_ns() > state.options.deadline_seconds * 1e9
        is_idle = self._idle > IDLE_LOOKS and state.idle_ns() > IDLE_NS
        if is_idle or late:
            state.waiting.discard(id(self))
            return True
        return False

    def over(self) -> None:
        """Note that nobody holds the answer any more."""
        self._state.waiting.discard(id(self))


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_idle(waiting: int, known: frozenset[threading.Thread]) -> bool:
    """Return whether nothing is to run in this event loop but so many that look whether they may go on.

    What asyncio (CPython 3.11 to 3.14) has ready, scheduled and registered tells; other loops do not say.
    """
    loop = _loop()
    try:
        ready, timers = len(loop._ready), [t for t in loop._scheduled if not t.cancelled()]  # type: ignore[union-attr]
        files = len(loop._selector.get_map())  # type: ignore[union-attr]
    except AttributeError:
        return False
    # Each of the others is ready or has a timer; the one file is the loop's own, by which threads wake it.
    return ready + len(timers) < waiting and files <= 1 and not _busy_threads(loop, known)


def _busy_threads(loop: Any, known: frozenset[threading.Thread]) -> bool:
    """Return whether a thread runs that may wake this one: none of the loop's own pool where that has nothing to do,
    and none of those that were there before the replay.
    """
    pool = loop._default_executor
    # Each thread of a pool counts as idle from its first work done until the next is handed in.
    resting = pool._threads if pool and pool._idle_semaphore._value >= len(pool._threads) else ()
    here = threading.get_ident()
    return any(
        thread.ident != here
        and thread not in known
        and thread.name != WATCH
        and thread not in resting
        for thread in threading.enumerate()
    )


WATCH = "agentobs-replay-watch"
"""The name of the thread that looks after the deadline."""
