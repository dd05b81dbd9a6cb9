"""Completion order: concurrent responses end in the order in which they ended in the recording.

Which of several requests is answered first decides the path of an agent that waits for the first of them. Replayed
responses arrive immediately, so each waits for those that ended before it. If the code has changed, these may never
come; or they may wait for this one, if others started first by chance. As soon as nothing else can happen, the response
that ended first continues, and the report says so. At the deadline it is a divergence.

If the recorded client gave up a request, its response is held until this client gives up, too. That is often a timeout,
to which the virtual clock jumps as soon as nothing else can run. The held response has its own alarm, so that a client
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
"""How many times other tasks may run after a response has ended, before the next one does: a task whose request is
answered has ended by then, and its waiter continues. Our choice: each layer of tasks takes two or three.
"""
SETTLED_NS = 20_000_000
"""How long threads get in the same case, in nanoseconds, if nothing shows whether they still run. Our choice."""
RUNNING_LOOKS = 250
"""How many checks may find that other tasks still run, before the response continues anyway. Our choice: half a second
or more.
"""
QUICK_LOOKS = 300
LOOK_SECONDS = 0.002
"""After how many checks there is a pause between two, and how long. Our choice."""
IDLE_LOOKS = 64
IDLE_NS = 1_000_000_000
"""How many consecutive checks must find the event loop idle, and for how long the agent must have sent nothing,
before nothing more is expected. Our choice.
"""
BLOCKED_NS = 20_000_000
"""How long the virtual clock must have found nothing able to run. Our choice."""
UNKNOWN_SECONDS = 60.0
"""The assumed duration of a response whose duration was not recorded. Our choice."""
PATIENCE = 0.5
"""After which part of the deadline a response continues out of turn if nothing shows that nothing else can happen:
among threads without a virtual clock, or while a thread waits for something real. Our choice.
"""
MARGIN_MS = 5_000
"""How much longer than the recorded client this one may take to give up its request. Our choice."""


PAUSES_SECONDS = 1.0
"""Virtual seconds that other tasks may pause before the request that a response is held for. Our choice."""


class Turn:
    """Holds a response until those that ended before it have been delivered."""

    def __init__(
        self,
        state: State,
        lane: Lane,
        ask: Ask,
        *,
        cancelled_at_ms: tuple[int, int] | None,
        says: Callable[[list[int]], str],
        error: Callable[[list[int]], DivergenceError],
    ) -> None:
        """Hold the response to `ask`.

        Args:
            state: the progress of the replay.
            lane: the lane of the request.
            ask: the request.
            cancelled_at_ms: when its client gave it up, see `Ask.cancelled_at_ms`; None if it did not, or is the agent
                loop of agentobs.
            says: describes what it waits for.
            error: creates the error for a wait in vain.
        """
        self._state, self._lane, self._ask = state, lane, ask
        self._stopped_ms, self._says, self._error = cancelled_at_ms, says, error
        self._looks = self._idle = self._settled = 0
        self._since_ns = self._held_ns = 0
        self._alarm: object = None
        self._hold = Hold(threading.get_ident())
        self._seen = (0, 0)
        self._is_told = False
        state.asked_in[ask.number] = threading.get_ident()

    def look(self, point: Point) -> float | None:
        """Return after how many seconds to check again, or None if the response may continue.

        Raises:
            DivergenceError: there is one, or the awaited responses do not come.
        """
        state = self._state
        state.raise_divergence()
        if state.beyond:
            return None  # others may never be answered
        if point == "stop":
            return self._stopping()
        before = self._ask.starts_after | (self._ask.ends_after if point == "end" else frozenset())
        over = self._ask.ended_jobs if point == "end" else frozenset()
        missing = sorted((before - state.ended) | state.unfinished(over))
        if not missing and not (point == "end" and self._has_others()):
            return self._settling() if before or over else None
        if missing and self._holds_up(missing):
            return None
        if not self._is_left():
            return self._pause()
        return self._out_of_turn(missing)

    def _has_others(self) -> bool:
        """Return whether a request is missing that had been sent when the response ended."""
        return self._ask.last_issued_before_end is not None and self._lane.lacks(
            self._ask.last_issued_before_end
        )

    def _holds_up(self, missing: list[int]) -> bool:
        """Return whether this blocks the only thread that could read the awaited response."""
        if loop_here() is not None or busy_threads(None, self._state.threads):
            return False
        here = threading.get_ident()
        return all(self._state.asked_in.get(number) == here for number in missing)

    def _out_of_turn(self, missing: list[int]) -> float | None:
        """Let the response continue if nothing else can happen, the one that ended first before the others."""
        if not missing:
            return None  # a concurrent request is no longer sent: that is reported at the end
        state = self._state
        if state.idle_ns() > state.options.deadline_seconds * 1e9:
            raise self._error(missing)
        if not self._is_first():
            return self._pause()
        if self._is_told:
            return None
        self._is_told = True
        text = (
            f"{self._says(missing)}; it continued without that, because nothing else could happen"
        )
        state.suspicions.append(Suspicion(self._lane.name, self._ask.number, text))
        return None

    def _is_first(self) -> bool:
        """Return whether all held responses ended after this one in the recording, or their order is unknown."""
        waiting = set(self._state.waiting)
        free = [number for number in waiting if not self._behind(number) & waiting]
        return not free or min(free) == self._ask.number

    def _behind(self, number: int) -> set[int]:
        """Return all requests that ended before this one."""
        found, left = set[int](), [number]
        while left:
            ask = self._state.fixture.asks[left.pop() - 1]
            new = (ask.starts_after | ask.ends_after) - found
            found |= new
            left += new
        return found

    def _settling(self) -> float | None:
        """Give other tasks time to process their responses."""
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
        """Return whether the other tasks have run as far as they can."""
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
        """Wait for the code that stopped the recorded client to stop this one."""
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
        """Return whether this many seconds have passed since the first call while nothing else could run."""
        if alarm != self._alarm:
            self._alarm = alarm
            clock.set_alarm(id(self), seconds)
        return clock.has_rung(id(self))

    def _took_seconds(self) -> float:
        """Return the longest time to hold the response: its recorded duration, plus a margin for pauses of other tasks.

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
        """Return whether nothing more comes that it might wait for."""
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
        """Note that the response is not held any more."""
        self._settled, self._alarm = 0, None
        self._state.waiting.discard(self._ask.number)
        if self._state.clock is not None:
            self._state.clock.let_go(self._hold)
            self._state.clock.drop_alarm(id(self))
