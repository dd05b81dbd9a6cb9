"""Turns: answers that were in flight together end in the order in which they ended when they were recorded.

Which of several requests was answered first decides the path of an agent that waits for the first of them. Replayed
answers come at once, so that each waits for those that came before it. What is waited for may never come, where the
code was changed, or may wait for this one, where chance started others first: as soon as nothing else can happen any
more, the one that ended first goes on, and the report says so. At the deadline it is a divergence.

If the recorded client gave up a request, its answer is held until this client gives up, too. That is often a timeout,
to which the virtual clock jumps as soon as nothing else can run. The held answer has its own alarm, so that a client
which is more patient than the recorded one does not wait forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agentobs import world
from agentobs.records.exchanges import Point
from replay.divergence.divergence import DivergenceError
from replay.divergence.divergence_facts import Suspicion
from replay.fixture.format import Ask
from replay.matching.lane import Lane
from replay.progress.replay_state import State
from replay.virtual_time.event_loops import busy_threads, loop_here, timers
from replay.virtual_time.thread_states import Activity
from replay.virtual_time.virtual_clock import Hold, VirtualClock

SETTLED_LOOKS = 32
"""How many times others come to run after an answer has ended, before the next one does: a task whose request is
answered has ended by then, and whoever waits for it goes on. Our choice: each layer of tasks takes two or three."""
SETTLED_NS = 20_000_000
"""How long threads get in the same case, in nanoseconds, if nothing shows whether they still run. Our choice."""
RUNNING_LOOKS = 250
"""How many looks may find that others still run, before the answer goes on all the same. Our choice: half a second or
more."""
QUICK_LOOKS = 300
LOOK_SECONDS = 0.002
"""After how many looks there is a pause between two, and how long. Our choice."""
IDLE_LOOKS = 64
IDLE_NS = 1_000_000_000
"""How many times in a row nothing else is to run in the event loop, and for how long nothing has come from the agent,
before nothing is expected to. Our choice."""
BLOCKED_NS = 20_000_000
"""How long the virtual clock must have found nothing able to run. Our choice."""
UNKNOWN_SECONDS = 60.0
"""The assumed duration of an answer whose duration was not recorded. Our choice."""
PATIENCE = 0.5
"""After which part of the deadline an answer goes on out of its turn where nothing says that nothing else can happen:
among threads without a virtual clock, or while a thread waits for something real. Our choice."""
MARGIN_MS = 5_000
"""How much longer than the recorded client this one has, to give up its request. Our choice."""


PAUSES_SECONDS = 1.0
"""Virtual seconds in which other tasks may pause before the request that an answer is held for. Our choice."""


class Turn:
    """Holds an answer back until those that ended before it have been given."""

    def __init__(
        self,
        state: State,
        lane: Lane,
        ask: Ask,
        *,
        stopped_ms: tuple[int, int] | None,
        says: Callable[[list[int]], str],
        error: Callable[[list[int]], DivergenceError],
    ) -> None:
        """Hold the answer of `ask`.

        Args:
            state: how far the replay has come.
            lane: where it was asked.
            ask: the request.
            stopped_ms: when its client gave it up, see `Ask.stopped_ms`; None where it did not, or is our own loop.
            says: says what it waits for.
            error: makes what is raised where it waits in vain.
        """
        self._state, self._lane, self._ask = state, lane, ask
        self._stopped_ms, self._says, self._error = stopped_ms, says, error
        self._looks = self._idle = self._settled = 0
        self._since_ns = self._held_ns = 0
        self._alarm: object = None
        self._hold = Hold(threading.get_ident())
        self._seen = (0, 0)
        self._is_told = False
        state.asked_in[ask.number] = threading.get_ident()

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
            return self._stopping()
        before = self._ask.behind | (self._ask.ends_behind if point == "end" else frozenset())
        over = self._ask.over if point == "end" else frozenset()
        missing = sorted((before - state.ended) | state.unfinished(over))
        if not missing and not (point == "end" and self._has_others()):
            return self._settling() if before or over else None
        if missing and self._holds_up(missing):
            return None
        if not self._is_left():
            return self._pause()
        return self._out_of_turn(missing)

    def _has_others(self) -> bool:
        """Return whether something is still to be asked that had been asked when the answer ended."""
        return self._ask.amid is not None and self._lane.lacks(self._ask.amid)

    def _holds_up(self, missing: list[int]) -> bool:
        """Return whether this holds up the only thread that could read what it waits for."""
        if loop_here() is not None or busy_threads(None, self._state.threads):
            return False
        here = threading.get_ident()
        return all(self._state.asked_in.get(number) == here for number in missing)

    def _out_of_turn(self, missing: list[int]) -> float | None:
        """Let the answer go on where nothing else can happen, the one first that ended first."""
        if not missing:
            return None  # what was asked beside it is not asked any more: that is told at the end
        state = self._state
        if state.idle_ns() > state.options.deadline_seconds * 1e9:
            raise self._error(missing)
        if not self._is_first():
            return self._pause()
        if self._is_told:
            return None
        self._is_told = True
        text = f"{self._says(missing)}; it went on without, for nothing else could happen"
        state.suspicions.append(Suspicion(self._lane.name, self._ask.number, text))
        return None

    def _is_first(self) -> bool:
        """Return whether all that are held ended after this one when they were recorded, or nobody knows."""
        waiting = set(self._state.waiting)
        free = [number for number in waiting if not self._behind(number) & waiting]
        return not free or min(free) == self._ask.number

    def _behind(self, number: int) -> set[int]:
        """Return all asks that ended before this one."""
        found, left = set[int](), [number]
        while left:
            ask = self._state.fixture.asks[left.pop() - 1]
            new = (ask.behind | ask.ends_behind) - found
            found |= new
            left += new
        return found

    def _settling(self) -> float | None:
        """Give the others time to go on with their answers."""
        self._state.waiting.discard(self._ask.number)
        if not self._settled:
            self._since_ns = world.monotonic()
        self._settled += 1
        if loop_here() is not None and self._settled <= SETTLED_LOOKS:
            return 0.0
        if self._is_settled():
            if self._state.clock is not None:
                self._state.clock.let_go(self._hold)
            return None
        return LOOK_SECONDS

    def _is_settled(self) -> bool:
        """Return whether the others have gone on as far as they can."""
        activity: Activity = "outside"
        if (clock := self._virtual()) is not None:
            self._hold.ident = threading.get_ident()
            activity = clock.settle(self._hold)
        elif loop_here() is not None:
            return True
        if activity == "running":
            return self._settled > RUNNING_LOOKS
        return activity == "blocked" or world.monotonic() - self._since_ns >= SETTLED_NS

    def _stopping(self) -> float | None:
        """Wait for whatever stopped the recorded client to stop this one."""
        if self._stopped_ms is None:
            return None if self._is_left(1.0) else self._pause()
        clock = self._virtual()
        if clock is not None:
            # Twice the time that the recorded client waited, plus some seconds.
            seconds = (2 * self._stopped_ms[1] + MARGIN_MS) / 1000
            return (
                None
                if self._rings(clock, "stop", seconds) or self._is_over(clock)
                else self._pause()
            )
        self._held_ns = self._held_ns or world.monotonic()
        held_ms = (world.monotonic() - self._held_ns) / 1e6
        is_late = held_ms > self._stopped_ms[0] + MARGIN_MS
        return None if is_late or self._is_left(1.0) else self._pause()

    def _rings(self, clock: VirtualClock, alarm: object, seconds: float) -> bool:
        """Return whether so many seconds have passed since the first call while nothing else could run."""
        if alarm != self._alarm:
            self._alarm = alarm
            clock.set_alarm(id(self), seconds)
        return clock.has_rung(id(self))

    def _took_seconds(self) -> float:
        """Return the longest time to hold the answer: its recorded duration, plus a margin for pauses of other tasks.

        A timeout of its client is longer, so that it does not fire first.
        """
        took_ms = self._ask.pieces[-1][1] if self._ask.pieces else 0
        return (took_ms / 1000 or UNKNOWN_SECONDS) + PAUSES_SECONDS

    def _virtual(self) -> VirtualClock | None:
        """Return the clock by which the agent waits; None if its time is real."""
        clock = self._state.clock
        return None if clock is None or clock.is_live else clock

    def _pause(self) -> float:
        self._looks, self._settled = self._looks + 1, 0
        if (clock := self._virtual()) is not None:
            self._hold.ident = threading.get_ident()
            clock.hold(self._hold)
        return 0.0 if self._looks < QUICK_LOOKS and loop_here() is not None else LOOK_SECONDS

    def _is_left(self, patience: float = PATIENCE) -> bool:
        """Return whether nothing comes any more that it might wait for."""
        state = self._state
        state.waiting.add(self._ask.number)
        if (clock := self._virtual()) is not None:
            progress = ("end", len(state.ended), self._lane.asked)
            return self._rings(clock, progress, self._took_seconds()) or self._is_over(clock)
        scheduled = timers(len(state.waiting), state.threads)
        seen = len(state.ended), self._lane.asked
        self._idle = self._idle + 1 if scheduled is not None and seen == self._seen else 0
        self._seen = seen
        if state.idle_ns() > state.options.deadline_seconds * 1e9 * patience:
            return True
        return self._idle > IDLE_LOOKS and not scheduled and state.idle_ns() > IDLE_NS

    def _is_over(self, clock: VirtualClock) -> bool:
        """Return whether nothing can run any more, or the agent made no progress until the deadline."""
        patience = PATIENCE if clock.is_outside else 1.0
        is_late = self._state.idle_ns() > self._state.options.deadline_seconds * 1e9 * patience
        return is_late or clock.blocked_ns > BLOCKED_NS

    def over(self) -> None:
        """Note that nobody holds the answer any more."""
        self._settled, self._alarm = 0, None
        self._state.waiting.discard(self._ask.number)
        if self._state.clock is not None:
            self._state.clock.let_go(self._hold)
            self._state.clock.drop_alarm(id(self))
