"""Completion order: concurrent responses end in the order in which they ended in the recording.

If an agent waits for the first of several responses, the order in which they end determines its path. Replayed
responses arrive immediately, so each response is held until the responses that ended before it have ended. If the code
has changed, these responses may never come; or they may wait for the held response, if their requests happened to be
sent in another order. As soon as nothing else can happen, the held response that ended first in the recording
continues, and the report of a later divergence mentions this. If the wait lasts until the deadline, this is a
divergence itself.

If the recorded client cancelled a request, the response is held until the live client cancels it as well. The reason is
often a timeout, and the virtual clock jumps to it as soon as nothing else can run. The held response has its own alarm,
so that a client that waits longer than the recorded client does not wait forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agentobs import world
from agentobs.runtime import Point
from replay.divergence.divergence import DivergenceError
from replay.divergence.divergence_facts import Suspicion
from replay.fixture.format import RecordedRequest
from replay.matching.lane import Lane
from replay.progress.replay_state import ReplayState
from replay.virtual_time.event_loops import busy_threads, current_loop, pending_timers
from replay.virtual_time.thread_states import Activity
from replay.virtual_time.virtual_clock import Hold, VirtualClock

SETTLING_CHECKS = 32
"""The maximum number of times that other tasks may run after a response has ended, before the next response ends. By
then, the task that sent the request has ended, and the code that waits for the task continues. Our choice: each layer
of tasks takes two or three runs.
"""
SETTLING_NS = 20_000_000
"""How long threads may run in the same situation, in nanoseconds, if it is unknown whether they still run. Our choice.
"""
RUNNING_CHECKS = 250
"""The maximum number of checks that may find that other tasks still run before the response continues anyway. Our
choice; the checks take half a second or more.
"""
QUICK_CHECKS = 300
CHECK_SECONDS = 0.002
"""The number of checks without a pause in between, and the pause between later checks. Our choice."""
CHECK_SHARE = 8
"""The pause between later checks is at least this many times as long as the check of the clock. Otherwise, in a process
with hundreds of threads, the clock would always find the thread of a held response running. Our choice.
"""
IDLE_CHECKS = 64
IDLE_NS = 1_000_000_000
"""The number of consecutive checks that must find the event loop idle, and the time without a request from the agent,
before the replay assumes that nothing more will happen. Our choice.
"""
BLOCKED_NS = 20_000_000
"""For how long the virtual clock must have found that nothing can run. Our choice."""
UNKNOWN_SECONDS = 60.0
"""The assumed duration of a response whose duration was not recorded. Our choice."""
PATIENCE = 0.5
"""The part of the deadline after which a response continues out of order although something else might still happen:
among threads without a virtual clock, or while a thread waits for something real. Our choice.
"""
MARGIN_MS = 5_000
"""The maximum time by which the live client may cancel its request later than the recorded client. Our choice."""
PAUSES_SECONDS = 1.0
"""The number of virtual seconds that other tasks may pause before they send a request that a held response waits for.
Our choice.
"""


class ResponseGate:
    """Holds a response until the responses that ended before it have been delivered."""

    def __init__(
        self,
        state: ReplayState,
        lane: Lane,
        request: RecordedRequest,
        *,
        cancelled_at_ms: tuple[int, int] | None,
        describe: Callable[[list[int]], str],
        error: Callable[[list[int]], DivergenceError],
    ) -> None:
        """Hold the response to `request`.

        Args:
            state: the progress of the replay.
            lane: the lane of the request.
            request: the recorded request.
            cancelled_at_ms: when the client cancelled the request, see `RecordedRequest.cancelled_at_ms`; None if the
                client did not cancel it, or is the agent loop of agentobs.
            describe: returns a description of the requests that the response waits for, given their numbers.
            error: creates the error if these requests do not end.
        """
        self._state, self._lane, self._request = state, lane, request
        self._cancelled_ms, self._describe, self._error = cancelled_at_ms, describe, error
        self._checks = self._idle_checks = self._settling_checks = 0
        self._settling_since_ns = self._held_ns = 0
        self._alarm: object = None
        self._hold = Hold(threading.get_ident())
        self._last_progress = (0, 0)
        self._is_reported = False
        state.requests.threads[request.number] = threading.get_ident()

    def check(self, point: Point) -> float | None:
        """Return after how many seconds to check again, or None if the response may continue.

        Raises:
            DivergenceError: the replay has diverged, or the awaited responses do not arrive.
        """
        state = self._state
        state.findings.raise_first()
        if state.path.later_requests:
            return None  # later requests may never be answered
        if point == "stop":
            return self._await_cancellation()
        earlier = self._request.starts_after | (
            self._request.ends_after if point == "end" else frozenset()
        )
        jobs = self._request.ended_jobs if point == "end" else frozenset()
        missing = sorted((earlier - state.requests.finished) | state.requests.unfinished(jobs))
        if not missing and not (point == "end" and self._lacks_request()):
            return self._settle() if earlier or jobs else None
        if missing and self._blocks_reader(missing):
            return None
        if not self._is_wait_over():
            return self._pause()
        return self._continue_out_of_order(missing)

    def _lacks_request(self) -> bool:
        """Return whether the replay still lacks a request that was sent before the recorded response ended."""
        return self._request.last_issued_before_end is not None and self._lane.has_unused_until(
            self._request.last_issued_before_end
        )

    def _blocks_reader(self, missing: list[int]) -> bool:
        """Return whether this response blocks the only thread that could read the awaited responses."""
        if current_loop() is not None or busy_threads(None, self._state.agent.earlier_threads):
            return False
        here = threading.get_ident()
        return all(self._state.requests.threads.get(number) == here for number in missing)

    def _continue_out_of_order(self, missing: list[int]) -> float | None:
        """Let the response continue if it is the first of the held responses, because nothing else can happen."""
        if not missing:
            return None  # a concurrent request is no longer sent, which is reported at the end
        state = self._state
        if state.agent.idle_ns() > state.setup.options.deadline_seconds * 1e9:
            raise self._error(missing)
        if not self._is_first():
            return self._pause()
        if self._is_reported:
            return None
        self._is_reported = True
        text = f"{self._describe(missing)}; it continued because nothing else could happen"
        state.findings.suspicions.append(Suspicion(self._lane.name, self._request.number, text))
        return None

    def _is_first(self) -> bool:
        """Return whether all held responses ended after this one in the recording, or their order is unknown."""
        held = set(self._state.requests.held)
        free = [number for number in held if not self._predecessors(number) & held]
        return not free or min(free) == self._request.number

    def _predecessors(self, number: int) -> set[int]:
        """Return all requests that ended before a request."""
        found, remaining = set[int](), [number]
        while remaining:
            request = self._state.setup.fixture.requests[remaining.pop() - 1]
            new = (request.starts_after | request.ends_after) - found
            found |= new
            remaining += new
        return found

    def _settle(self) -> float | None:
        """Give other tasks time to process their responses."""
        self._state.requests.held.discard(self._request.number)
        if not self._settling_checks:
            self._settling_since_ns = world.monotonic()
        self._settling_checks += 1
        if current_loop() is not None and self._settling_checks <= SETTLING_CHECKS:
            return 0.0
        if self._is_settled():
            if self._state.agent.clock is not None:
                self._state.agent.clock.release(self._hold)
            return None
        return CHECK_SECONDS

    def _is_settled(self) -> bool:
        """Return whether the other tasks cannot run any further."""
        activity: Activity = "outside"
        if (clock := self._virtual()) is not None:
            self._hold.ident = threading.get_ident()
            activity = clock.settle(self._hold)
        elif current_loop() is not None:
            return True
        if activity == "running":
            return self._settling_checks > RUNNING_CHECKS
        settling_ns = world.monotonic() - self._settling_since_ns
        return activity == "blocked" or settling_ns >= SETTLING_NS

    def _await_cancellation(self) -> float | None:
        """Hold the response to a request that was cancelled in the recording, until the client cancels it again."""
        if self._cancelled_ms is None:
            return None if self._is_wait_over(1.0) else self._pause()
        clock = self._virtual()
        if clock is not None:
            # Twice the time that the recorded client waited, plus some seconds.
            seconds = (2 * self._cancelled_ms[1] + MARGIN_MS) / 1000
            is_over = self._has_alarm_rung(clock, "stop", seconds) or self._is_stuck(clock)
            return None if is_over else self._pause()
        self._held_ns = self._held_ns or world.monotonic()
        held_ms = (world.monotonic() - self._held_ns) / 1e6
        is_late = held_ms > self._cancelled_ms[0] + MARGIN_MS
        return None if is_late or self._is_wait_over(1.0) else self._pause()

    def _has_alarm_rung(self, clock: VirtualClock, alarm: object, seconds: float) -> bool:
        """Set an alarm at the first call; return whether it has rung. It counts only time in which nothing can run.

        Args:
            clock: the clock.
            alarm: identifies the alarm; a different value sets a new alarm.
            seconds: the number of seconds until the alarm rings.
        """
        if alarm != self._alarm:
            self._alarm = alarm
            clock.set_alarm(id(self), seconds)
        return clock.has_rung(id(self))

    def _hold_seconds(self) -> float:
        """Return the maximum time to hold the response: its recorded duration, plus a margin for pauses of other tasks.

        The timeout of the client is longer, so the response is released before the timeout.
        """
        took_ms = self._request.chunks[-1][1] if self._request.chunks else 0
        return (took_ms / 1000 or UNKNOWN_SECONDS) + PAUSES_SECONDS

    def _virtual(self) -> VirtualClock | None:
        """Return the clock by which the agent waits; None if its time is real."""
        clock = self._state.agent.clock
        return None if clock is None or clock.is_live else clock

    def _pause(self) -> float:
        self._checks, self._settling_checks = self._checks + 1, 0
        if (clock := self._virtual()) is not None:
            self._hold.ident = threading.get_ident()
            clock.hold(self._hold)
        if self._checks < QUICK_CHECKS and current_loop() is not None:
            return 0.0
        return (
            CHECK_SECONDS
            if clock is None
            else max(CHECK_SECONDS, clock.check_seconds * CHECK_SHARE)
        )

    def _is_wait_over(self, patience: float = PATIENCE) -> bool:
        """Return whether nothing that the response might wait for can still happen."""
        state = self._state
        state.requests.held.add(self._request.number)
        if (clock := self._virtual()) is not None:
            progress = ("end", len(state.requests.finished), self._lane.used_count)
            has_rung = self._has_alarm_rung(clock, progress, self._hold_seconds())
            return has_rung or self._is_stuck(clock)
        scheduled = pending_timers(len(state.requests.held), state.agent.earlier_threads)
        current = len(state.requests.finished), self._lane.used_count
        is_idle = scheduled is not None and current == self._last_progress
        self._idle_checks = self._idle_checks + 1 if is_idle else 0
        self._last_progress = current
        if state.agent.idle_ns() > state.setup.options.deadline_seconds * 1e9 * patience:
            return True
        return self._idle_checks > IDLE_CHECKS and not scheduled and state.agent.idle_ns() > IDLE_NS

    def _is_stuck(self, clock: VirtualClock) -> bool:
        """Return whether nothing can run, or the agent made no progress until the deadline."""
        patience = PATIENCE if clock.is_outside else 1.0
        limit_ns = self._state.setup.options.deadline_seconds * 1e9 * patience
        return self._state.agent.idle_ns() > limit_ns or clock.blocked_ns > BLOCKED_NS

    def close(self) -> None:
        """Stop holding the response."""
        self._settling_checks, self._alarm = 0, None
        self._state.requests.held.discard(self._request.number)
        if self._state.agent.clock is not None:
            self._state.agent.clock.release(self._hold)
            self._state.agent.clock.drop_alarm(id(self))
