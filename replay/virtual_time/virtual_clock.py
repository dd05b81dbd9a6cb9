"""The virtual clock of a replay: waits end as soon as nothing else can run, in the order of their deadlines.

Everything that waits with a timeout announces its deadline (`park`, `set_alarm`). As soon as `ThreadStates` reports
that every other thread is blocked, the clock jumps to the earliest deadline and wakes the thread with that deadline.
When that thread is blocked again, the clock jumps again. As a result, a sleep of 1 s ends before a sleep of 2 s in any
thread or event loop, and no timeout fires while another thread still computes the awaited value.

Between jumps, the clock follows the CPU time of the process, so that the speed and the load of the machine do not
change which of two timers fires first. A wait whose deadline passes this way is woken after `OVERDUE_SECONDS`, even if
other threads compute. While a thread waits for something real (a child process, a pipe, a lock with a timeout that is
not virtual), the virtual clock follows the real clock.

The clock that the agent reads (`ahead_ns`) is the real clock plus all jumps. Therefore it always advances, even in code
that waits in a way that this module does not know.

After `go_live`, as in the live part of a fork, the virtual clock follows the real clock and never jumps.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agentobs import world
from replay.virtual_time.thread_states import CLOCK, REAL_SLEEP, Activity, Parking, ThreadStates

OVERDUE_SECONDS = 0.05
"""How much CPU time other threads may use after a deadline before the wait with this deadline is woken anyway. Our
choice: a shorter computation ends before the wait, as on a fast machine.
"""
CHECK_SECONDS = (0.0003, 0.005)
"""The shortest and the longest pause between two checks of the threads, if some threads run while others wait. Our
choice: a check costs about 50 us.
"""
HELD_CHECKS = 2
"""The number of times that a held response must find that it may not continue before time jumps."""
BLOCKED_CHECKS = 5
"""The number of consecutive checks that must find that nothing can run before the process counts as blocked. Our
choice.
"""
BURST, BURST_NS = 2_000, 1_000_000_000
"""The maximum number of jumps without a pause, and the period in nanoseconds for which it applies. Our choice: an
endless polling loop must not use a whole CPU.
"""
PAUSE_NS, PAUSES = 20_000_000, 10
"""The length of the first such pause, and the maximum factor by which later pauses are longer."""
OUTSIDE_SHARE = 0.5
"""While a thread waits for something real, this share of the real time counts for alarms. Our choice: the machine may
be slower than the machine of the recording.
"""


@dataclass(eq=False, slots=True)
class Wait:
    """One wait with a deadline."""

    deadline: float
    """When the wait ends, in seconds of the clock."""
    number: int
    """The position of this wait among all waits: of two waits with the same deadline, the earlier wait ends first."""
    wake: Callable[[], bool]
    """Wakes the wait; returns False if it has already been woken."""
    is_ready: Callable[[], bool]
    """Returns whether the wait has already ended for another reason, even if its thread has not noticed yet."""
    subject: str
    """What the thread waits for, as text for reports."""
    ident: int
    """The identity of the thread that waits."""
    parking: Parking = "lock"
    is_due: bool = False
    """Whether the wait was woken by its deadline."""
    is_released: bool = False
    """Whether the wait was woken by the end of the replay, so that the rest of the wait takes real time."""


@dataclass(eq=False, slots=True)
class Hold:
    """A recorded response that is held back. Its thread checks every few milliseconds whether it may continue."""

    ident: int
    """The identity of the thread in which the response is held."""
    checks: int = 0
    """The number of times that the response has found that it must wait."""
    idle_checks: int = field(default=-1)
    """The value of `checks` when the clock first found that nothing else runs; -1 if something else runs."""


class ClockLock:
    """A reentrant lock that knows which threads wait for it.

    According to the operating system, a thread that waits for the lock of the clock is blocked, but in fact the thread
    is about to run.
    """

    def __init__(self) -> None:
        """Create an unlocked lock."""
        self._lock = threading.RLock()
        self._entering: set[int] = set()
        self.keeper = 0
        """The identity of the thread that runs the clock, which does not count as waiting; 0 if there is none."""

    def __enter__(self) -> None:
        """Acquire it."""
        here = threading.get_ident()
        self._entering.add(here)
        try:
            self._lock.acquire()
        finally:
            self._entering.discard(here)

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self._lock.release()

    @property
    def is_wanted(self) -> bool:
        """Whether any thread except the keeper waits for it."""
        return bool(self._entering - {self.keeper})


class VirtualClock:
    """Jumps to the next deadline whenever nothing else can run."""

    def __init__(self, states: ThreadStates) -> None:
        """Start at the real time.

        Args:
            states: reports whether anything can run.
        """
        self._states = states
        self._lock = ClockLock()
        self._base = (world.monotonic() - world.process_cpu()) / 1e9
        self._waits: dict[Wait, None] = {}
        self._alarms: dict[int, float] = {}
        """For each alarm, the value of `_idle_seconds` at which the alarm rings."""
        self._holds: dict[Hold, None] = {}
        self._settling: dict[Hold, None] = {}
        self._idle_seconds = 0.0
        """How long nothing could run, in virtual seconds."""
        self._wait_count = 0
        self._live = False
        self._outside_since: tuple[int, int] | None = None
        self._blocked_since: int | None = None
        self._blocked_until = self._blocked_checks = 0
        self._activity: Activity = "running"
        self._switch_counts: object = None
        self._burst = self._burst_ns = self._pauses = self._pause_until = 0
        self.check_seconds = 0.0
        """The duration of the last check of the threads, in seconds; about 0.1 ms per thread of the process."""
        self._keeper_signal = _thread.allocate_lock()
        """Released to wake the keeper, which waits by acquiring it."""
        self._has_closed = False
        self._keeper: threading.Thread | None = None
        """The thread that runs the clock while other threads wait."""
        self.ahead_ns = 0
        """How far the clock that the agent reads is ahead of the real clock, in nanoseconds."""
        self.jumps = 0
        """The number of times that the clock has jumped."""

    @property
    def is_live(self) -> bool:
        """Whether the clock follows the real clock."""
        return self._live or self._has_closed

    def now(self) -> float:
        """Return the time in seconds, on the axis of `time.monotonic`."""
        return self._base + (world.monotonic() if self.is_live else world.process_cpu()) / 1e9

    def is_agent_thread(self, frame: object) -> bool:
        """Return whether the calling thread works for the agent; see `ThreadStates.is_agent_thread`."""
        return self._states.is_agent_thread(frame)  # type: ignore[arg-type]

    def go_live(self) -> None:
        """Follow the real clock from now on."""
        with self._lock:
            if not self.is_live:
                self._base = self.now() - world.monotonic() / 1e9
                self._live = True

    def go_virtual(self) -> None:
        """Jump again from now on, after `go_live`."""
        with self._lock:
            if self._live:
                self._base = self.now() - world.process_cpu() / 1e9
                self._live = False

    def close(self) -> None:
        """End the clock: all remaining waits continue in real time."""
        with self._lock:
            self.go_live()
            self._has_closed = True
            for wait in list(self._waits):
                wait.is_released = wait.wake()
            self._wake_keeper()
        keeper = self._keeper
        if keeper is not None and keeper is not threading.current_thread():
            keeper.join()

    def park(self, lock: _thread.LockType, seconds: float, subject: str) -> bool:
        """Acquire a lock that the caller already holds, with a timeout; return whether it was released in time.

        Args:
            lock: held by the caller before the call and after it.
            seconds: the timeout, more than 0.
            subject: what the caller waits for.
        """

        def wake() -> bool:
            try:
                lock.release()
            except RuntimeError:
                return False  # another thread has just released the lock
            return True

        with self.waiting(seconds, subject, wake, lambda: not lock.locked()) as wait:
            lock.acquire()
        if wait.is_released:
            remaining = wait.deadline - self.now()
            return remaining > 0 and lock.acquire(True, remaining)
        return not wait.is_due

    def sleep(self, seconds: float, subject: str) -> None:
        """Wait for a number of virtual seconds; `subject` is what the caller waits for."""
        lock = _thread.allocate_lock()
        lock.acquire()
        self.park(lock, seconds, subject)

    @contextlib.contextmanager
    def waiting(
        self,
        seconds: float | None,
        subject: str,
        wake: Callable[[], bool],
        is_ready: Callable[[], bool],
        parking: Parking = "lock",
    ) -> Iterator[Wait]:
        """Announce a wait of the calling thread, and check immediately whether anything else can run.

        Args:
            seconds: the timeout; None if the wait has no deadline.
            subject: what the thread waits for.
            wake: wakes the thread; called in any thread.
            is_ready: returns whether the wait has already ended for another reason.
            parking: how the thread waits.
        """
        deadline = float("inf") if seconds is None else self.now() + seconds
        with self._lock:
            self._wait_count += 1
            here = threading.get_ident()
            wait = Wait(deadline, self._wait_count, wake, is_ready, subject, here, parking)
            self._waits[wait] = None
        try:
            with self._lock:
                self._advance(here=wait)
                if self._waits and not wait.is_due:
                    self._wake_keeper()
            yield wait
        finally:
            with self._lock:
                self._waits.pop(wait, None)

    @contextlib.contextmanager
    def real_time(self) -> Iterator[None]:
        """Follow the real clock for as long as the context is open."""
        was_live = self._live
        self.go_live()
        try:
            yield
        finally:
            if not was_live:
                self.go_virtual()

    def set_alarm(self, key: int, seconds: float) -> None:
        """Set an alarm that rings after a number of seconds in which nothing could run.

        CPU time does not count: the other threads finish their computations before the alarm, however slow they are.
        While a thread waits for something real, `OUTSIDE_SHARE` of the time counts.

        Args:
            key: identifies the alarm for `has_rung` and `drop_alarm`.
            seconds: more than 0.
        """
        with self._lock:
            self._alarms[key] = self._idle_seconds + seconds

    def has_rung(self, key: int) -> bool:
        """Return whether an alarm that was set has rung."""
        return key not in self._alarms

    def drop_alarm(self, key: int) -> None:
        """Forget an alarm."""
        with self._lock:
            self._alarms.pop(key, None)

    def hold(self, hold: Hold) -> None:
        """Record that a held response has checked and must wait.

        If the response is already held, this does not take the lock, because a thread that waits for the lock counts as
        running.
        """
        hold.checks += 1
        if hold in self._holds and hold not in self._settling:
            return
        with self._lock:
            self._settling.pop(hold, None)
            if hold not in self._holds:
                hold.idle_checks = -1
                self._holds[hold] = None
                self._blocked_since, self._blocked_checks = None, 0
                self._wake_keeper()

    def release(self, hold: Hold) -> None:
        """Record that a response is no longer held."""
        with self._lock:
            self._holds.pop(hold, None)
            self._settling.pop(hold, None)
            self._restart_hold_checks()

    def settle(self, hold: Hold) -> Activity:
        """Record that a held response continues as soon as nothing else can run; return whether anything else can run.

        Time does not jump until `release`. Other responses that settle at the same time count as blocked.
        """
        with self._lock:
            self._holds.pop(hold, None)
            self._settling[hold] = None
            self._restart_hold_checks()
            found = self._states.activity(self._parked())
            if self._lock.is_wanted or any(wait.is_ready() for wait in self._waits):
                return "running"
            return "blocked" if self._states.is_guess else found

    def note_loop_activity(self) -> None:
        """Record that an event loop runs something other than the checks of held responses."""
        with self._lock:
            self._restart_hold_checks()

    def has_hold_in_thread(self) -> bool:
        """Return whether a response is held in the calling thread."""
        here = threading.get_ident()
        return any(hold.ident == here for hold in list(self._holds))

    def wait_subjects(self) -> dict[int, str]:
        """Return what each waiting thread waits for, by the identity of the thread."""
        return {wait.ident: wait.subject for wait in list(self._waits)}

    @property
    def is_outside(self) -> bool:
        """Whether a thread was waiting for something real at the last check."""
        return self._activity == "outside"

    @property
    def blocked_ns(self) -> int:
        """How long nothing has been able to run, as of the last check, in nanoseconds; 0 if something can run.

        Several checks must have found that nothing can run, because time also passes while this process is not
        scheduled.
        """
        since = self._blocked_since
        if since is None or self._blocked_checks < BLOCKED_CHECKS:
            return 0
        return max(self._blocked_until - since, 1)

    def check(self) -> Activity:
        """Check all threads, jump if nothing can run, and return the activity that was found."""
        with self._lock:
            self._advance(here=None)
            return self._activity

    def has_foreign_threads(self) -> bool:
        """Return whether there are threads that Python did not start."""
        return self._states.has_foreign_threads()

    def _parked(self) -> dict[int, Parking]:
        parked: dict[int, Parking] = {
            hold.ident: "held" for hold in [*self._holds, *self._settling]
        }
        parked.update({wait.ident: wait.parking for wait in self._waits})
        return parked

    def _advance(self, here: Wait | None) -> bool:
        """Wake the wait that is due, if any; return whether the clock has jumped or woken a wait.

        `here` is the wait of the calling thread, which is about to block.
        """
        if self.is_live:
            self._blocked_since, self._blocked_checks, self._activity = None, 0, "running"
            return self._wake_until(self.now())
        started_ns = world.monotonic()
        activity = self._states.activity(self._parked())
        self.check_seconds = (world.monotonic() - started_ns) / 1e9
        is_guess = self._states.is_guess
        if self._settling or self._lock.is_wanted or any(wait.is_ready() for wait in self._waits):
            activity, is_guess = "running", False
        if activity == "blocked" and here is not None and here.parking == "loop with files":
            activity = "outside"
        if self._states.switch_counts != self._switch_counts:
            self._switch_counts = self._states.switch_counts
            self._restart_hold_checks()
        # The check of a held response makes its thread run for a moment.
        if not (activity == "running" and self._holds and self._activity == "outside"):
            self._follow_real_clock(is_outside=activity == "outside")
        # Timers of threads that do not belong to the agent must not make a hanging agent look busy.
        self._store_activity("blocked" if is_guess else activity)
        if activity == "running":
            return self._wake_until(self.now() - OVERDUE_SECONDS)
        if activity == "outside":
            now = self.now()
            self._ring(now, now)
            return self._wake_until(now)
        if not self._have_holds_checked():
            return False
        now = self.now()
        alarms = [self._alarm_at(alarm, now) for alarm in self._alarms.values()]
        deadlines = [wait.deadline for wait in self._waits]
        earliest = min([*deadlines, *alarms], default=float("inf"))
        if earliest == float("inf"):
            self._blocked_until = world.monotonic()
            self._blocked_since = self._blocked_since or self._blocked_until
            self._blocked_checks += 1
            return False
        self._blocked_since, self._blocked_checks = None, 0
        if self._is_pausing():
            return False
        self._ring(now, earliest)
        return self._jump(now, earliest)

    def _alarm_at(self, alarm: float, now: float) -> float:
        """Return the time at which an alarm rings if the process is idle from now on."""
        return now + alarm - self._idle_seconds

    def _ring(self, now: float, until: float) -> None:
        for key, alarm in list(self._alarms.items()):
            if self._alarm_at(alarm, now) <= until:
                del self._alarms[key]

    def _store_activity(self, activity: Activity) -> None:
        """Store the activity that was found. The check of a held response makes its event loop run for a moment."""
        is_check = activity == "running" and self._holds and self._activity == "blocked"
        if activity != "blocked" and not is_check:
            self._restart_hold_checks()
        self._activity = activity

    def _restart_hold_checks(self) -> None:
        """Require each held response to check again before the process counts as blocked."""
        self._blocked_since, self._blocked_checks = None, 0
        for hold in self._holds:
            hold.idle_checks = -1

    def _have_holds_checked(self) -> bool:
        """Return whether each held response has checked again since nothing else runs."""
        for hold in self._holds:
            if hold.idle_checks < 0:
                hold.idle_checks = hold.checks
        return all(hold.checks >= hold.idle_checks + HELD_CHECKS for hold in self._holds)

    def _follow_real_clock(self, *, is_outside: bool) -> None:
        """Advance with the real clock if a thread has waited for something real since the last check."""
        seen = world.monotonic(), world.process_cpu()
        before, self._outside_since = self._outside_since, seen if is_outside else None
        if before is not None and is_outside:
            seconds = max(seen[0] - before[0] - (seen[1] - before[1]), 0) / 1e9
            self._base += seconds
            self._idle_seconds += seconds * OUTSIDE_SHARE

    def _jump(self, now: float, to: float) -> bool:
        ahead = to - now
        if ahead > 0:
            self._base += ahead
            self._idle_seconds += ahead
            self.ahead_ns += int(ahead * 1e9)
            self.jumps += 1
        self._restart_hold_checks()
        first = min(self._waits, key=_due, default=None)
        return first is not None and first.deadline <= to and self._wake(first)

    def _is_pausing(self) -> bool:
        """Return whether the clock has jumped so often that it must pause."""
        now = world.monotonic()
        if now - self._burst_ns > BURST_NS:
            self._burst, self._burst_ns, self._pauses = 0, now, 0
        if now < self._pause_until:
            return True
        self._burst += 1
        if self._burst <= BURST:
            return False
        self._pauses = min(self._pauses + 1, PAUSES)
        self._pause_until = now + self._pauses * PAUSE_NS
        self._burst, self._burst_ns = 0, self._pause_until
        return True

    def _wake_until(self, at: float) -> bool:
        due = sorted((wait for wait in self._waits if wait.deadline <= at), key=_due)
        woken = [self._wake(wait) for wait in due]
        return any(woken)

    def _wake(self, wait: Wait) -> bool:
        self._waits.pop(wait, None)
        wait.is_due = wait.wake()
        return wait.is_due

    def _wake_keeper(self) -> None:
        if self._keeper is None and not self._has_closed:
            self._keeper = threading.Thread(target=self._keep, name=CLOCK, daemon=True)
            self._keeper.start()
        if self._keeper_signal.locked():
            with contextlib.suppress(RuntimeError):
                self._keeper_signal.release()

    def _keep(self) -> None:
        """Check the threads repeatedly, as long as any thread waits."""
        shortest, longest = CHECK_SECONDS
        pause = shortest
        self._lock.keeper = threading.get_ident()
        while not self._has_closed:
            with self._lock:
                has_moved = self._advance(here=None)
                is_needed = bool(self._waits or self._holds or self._alarms)
            if not is_needed:
                self._keeper_signal.acquire()
                pause = shortest
                continue
            pause = shortest if has_moved else min(pause * 1.3, longest)
            REAL_SLEEP(pause)


def _due(wait: Wait) -> tuple[float, int]:
    return wait.deadline, wait.number
