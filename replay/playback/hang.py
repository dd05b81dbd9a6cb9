"""Hang detection: an agent that no longer makes progress is reported as a divergence, so that the test ends.

A thread watches whether the agent makes progress: whether it makes a request or records something. Without
progress, there are three cases:

- Nothing can run: each thread waits for another one, and no timer is left. This is a deadlock, which is
  reported after a second.
- Nothing is pending: the agent only wakes up and waits again, as in a polling loop whose condition never becomes
  true. This is reported after the deadline.
- Something is pending: the agent computes, or waits for a child process, a file or a connection. How long this takes is
  unknown, so it is reported only after ten times the deadline.

The divergence is raised in the main thread by a signal, even during a wait. It is raised repeatedly until the replay
has ended, because the agent may catch it, and may hang again while it exits. Other threads and other lanes get the
divergence at their next question.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from agentobs import world
from replay.agent_code.thread_stacks import thread_frames
from replay.analysis.divergence_report import report
from replay.divergence.divergence import Divergence
from replay.divergence.divergence_facts import Waiting
from replay.fixture.format import RecordedRequest
from replay.matching.lane import Lane
from replay.playback.waiters import waiters
from replay.progress.answer_delivery import speed_factor
from replay.progress.replay_state import ReplayState
from replay.virtual_time.thread_states import WATCH
from replay.virtual_time.time_patches import loops_in_use

SIGNAL: int | None = getattr(signal, "SIGURG", None)
"""The signal that interrupts the main thread; None on Windows. Python does not use this signal otherwise, and by
default it does nothing.
"""
REPEAT_SECONDS = 0.5
"""The interval between two interruptions. Our choice."""
WATCH_SECONDS = 0.25
"""The longest interval between two checks by the watching thread. Our choice."""
DEADLOCK_NS = 1_000_000_000
"""The agent counts as deadlocked if nothing has been able to run for this long. Our choice."""
PENDING_FACTOR = 10
"""The factor by which the deadline is longer if the agent computes or waits for something real. Our choice."""
COMPUTING = 0.2
"""The share of CPU time above which an agent counts as computing. Our choice."""
JUMP_CPU_NS = 2_000_000
"""CPU time per jump of the virtual clock that does not count as computing, because polling uses CPU time. Our choice.
"""

Cause = Literal["deadlock", "nothing pending", "computes", "waits outside"]
CAUSES: dict[Cause, str] = {
    "deadlock": "all of its threads and tasks wait for each other (a deadlock)",
    "nothing pending": "it only wakes up and waits again",
    "computes": "it computes and does not finish",
    "waits outside": "it waits for a child process, a file, a connection or a timeout in real time",
}


@dataclass(frozen=True, slots=True)
class Hang:
    """How an agent hangs."""

    cause: Cause
    seconds: float
    """The time without progress after which this counts as a hang."""
    waiting: tuple[Waiting, ...]
    """The threads and tasks that wait, and for what."""


def ended_out_of_order(
    state: ReplayState, lane: Lane, request: RecordedRequest, missing: list[int]
) -> Divergence:
    """Describe a response that waits in vain for other responses to end."""
    summary = awaited_ends(lane, request, missing)
    why = "concurrent requests now start in a different order, or one of them waits for another"
    return report(state, "timing", lane, summary, why=why, between=True, live=True)


def awaited_ends(lane: Lane, request: RecordedRequest, missing: list[int]) -> str:
    """Describe the other responses that must end before a held response ends."""
    position = lane.position_of(request)
    sent = {each.number for each in lane.requests} - {each.number for each in lane.unused}
    awaited = " and ".join(_awaited_request(lane, number, number in sent) for number in missing)
    return (
        f"the response to request {position} waits for {awaited}; in the recording it ended later"
    )


def _awaited_request(lane: Lane, number: int, was_sent: bool) -> str:
    position = next(at for at, each in enumerate(lane.requests, 1) if each.number == number)
    return f"request {position} to end" if was_sent else f"request {position}, which was not sent"


def hung(state: ReplayState, found: Hang) -> Divergence:
    """Describe an agent that makes no more progress."""
    lane = max(
        state.exchanges.lanes.values(), key=lambda lane: (bool(lane.unused), lane.used_count > 0)
    )
    seconds = "second" if found.seconds == 1 else "seconds"
    summary = f"the agent made no progress for {found.seconds:g} {seconds}: {CAUSES[found.cause]}"
    why = f"{_recorded_next(lane)}; deadline_seconds={state.setup.options.deadline_seconds:g} is the time limit"
    waiting = found.waiting
    return report(
        state, "timing", lane, summary, why=why, between=not lane.unused, live=True, waiting=waiting
    )


def _recorded_next(lane: Lane) -> str:
    """Describe the next action of the recorded agent."""
    if not lane.unused:
        return "the recorded agent made no more requests and ended here"
    due = lane.unused[0]
    return f"the recorded agent continued with request {lane.position_of(due)}, {due.method} {due.path}"


@contextlib.contextmanager
def deadline(state: ReplayState) -> Iterator[None]:
    """Raise a divergence if the agent makes no progress for as long as the options allow."""
    has_ended = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    hangs: list[Hang] = []
    watch = Watch(state)

    def interrupted(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not has_ended.is_set():
            with state.lock:
                raise state.findings.diverge(
                    hung(state, hangs[0])
                    if state.findings.divergence is None
                    else state.findings.divergence
                )

    def interrupt() -> None:
        if is_main and SIGNAL is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
        elif state.findings.divergence is None:
            with state.lock:
                state.findings.diverge(hung(state, hangs[0]))

    def keep_watch() -> None:
        while not has_ended.wait(watch.pause_seconds):
            found = watch.check()
            if found is not None and _is_due(state):
                hangs.append(found)
                interrupt()
                before = _main_position()
                has_ended.wait(REPEAT_SECONDS)
                while not state.agent.active_count and before != (before := _main_position()):
                    has_ended.wait(REPEAT_SECONDS)

    handler = signal.signal(SIGNAL, interrupted) if is_main and SIGNAL is not None else None
    watcher = threading.Thread(target=keep_watch, name=WATCH, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()
        if is_main and SIGNAL is not None:
            signal.signal(SIGNAL, handler if handler is not None else signal.SIG_DFL)


class Watch:
    """Measures for how long an agent has made no progress, and whether something is pending meanwhile."""

    def __init__(self, state: ReplayState) -> None:
        """Start watching."""
        self._state = state
        self._limit_ns = int(_seconds(state) * 1e9)
        self._idle_ns = self._checked_ns = 0
        """For how long nothing was pending, and the time of the last check."""
        self._pending_ns = self._used_ns = 0
        """For how long something was pending, and the CPU time since the last check.

        Computing is measured in CPU time, so that the load of the machine makes no difference.
        """
        self._cpu_ns, self._jumps = world.process_cpu(), 0
        self._last_pending: Cause = "computes"

    @property
    def pause_seconds(self) -> float:
        """How long to wait until the next check."""
        return min(max(self._limit_ns / 1e9 / 10, 0.01), WATCH_SECONDS)

    def check(self) -> Hang | None:
        """Return how the agent hangs; None if it does not hang, or not for long enough."""
        now = world.monotonic()
        passed, self._checked_ns = now - (self._checked_ns or now), now
        pending = self._pending(passed)
        silent_ns, deadlock_ns = self._state.agent.idle_ns(), self._deadlock_ns()
        if silent_ns < passed:
            self._idle_ns = self._pending_ns = 0
        elif pending is None:
            self._idle_ns += passed
        else:
            self._idle_ns, self._last_pending = 0, pending
            self._pending_ns += self._used_ns if pending == "computes" else passed
        if 0 < deadlock_ns <= self._blocked_ns():
            return self._hang("deadlock", deadlock_ns)
        if self._idle_ns >= self._limit_ns:
            is_deadlock = deadlock_ns and self._blocked_ns()
            return self._hang("deadlock" if is_deadlock else "nothing pending", self._limit_ns)
        if self._pending_ns >= self._limit_ns * PENDING_FACTOR:
            return self._hang(self._last_pending, self._limit_ns * PENDING_FACTOR)
        return None

    def _pending(self, passed: int) -> Cause | None:
        """Return what was pending since the last check; None if nothing was."""
        clock = self._state.agent.clock
        cpu = world.process_cpu()
        self._used_ns, self._cpu_ns = cpu - self._cpu_ns, cpu
        if clock is None or clock.is_live:
            return None
        jumps, self._jumps = clock.jumps - self._jumps, clock.jumps
        activity, used = clock.check(), self._used_ns - jumps * JUMP_CPU_NS
        if activity == "outside":
            return "waits outside"
        # A thread that is ready to run counts as computing, even if the machine does not schedule it.
        is_ready = activity == "running" and not jumps
        return "computes" if is_ready or used > passed * COMPUTING else None

    def _blocked_ns(self) -> int:
        clock = self._state.agent.clock
        return 0 if clock is None or clock.is_live else clock.blocked_ns

    def _deadlock_ns(self) -> int:
        """Return how long nothing must have been able to run in a deadlock; 0 if a deadlock cannot be detected."""
        clock = self._state.agent.clock
        is_certain = clock is not None and not clock.has_foreign_threads()
        return min(DEADLOCK_NS, self._limit_ns) if is_certain else 0

    def _hang(self, cause: Cause, limit_ns: int) -> Hang:
        return Hang(
            cause, limit_ns / 1e9, waiters(self._state.agent.earlier_threads, loops_in_use())
        )


def _is_due(state: ReplayState) -> bool:
    """Return whether the agent, and not the provider, still has something to do."""
    is_live = state.setup.options.fork is not None and state.path.later_requests
    is_over = is_live or state.agent.is_stopping
    return not is_over and bool(
        state.agent.active_count or any(lane.unused for lane in state.exchanges.lanes.values())
    )


def _seconds(state: ReplayState) -> float:
    """Return the deadline. If responses take their recorded time, the duration of the longest response is added."""
    pace = speed_factor(state.setup.options)
    longest = max(
        (request.chunks[-1][1] for request in state.setup.fixture.requests if request.chunks),
        default=0,
    )
    return state.setup.options.deadline_seconds + (longest / 1000 / pace if pace else 0)


def _main_position() -> tuple[int, int]:
    """Return the position of the main thread. Outside of `run`, the thread hangs if its position does not change."""
    frame = thread_frames().get(threading.main_thread().ident or 0)
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)
