"""While a session is open, times advance with the monotonic clock, whatever happens to the wall clock."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import agentobs
from agentobs import world

SECOND = 10**9
HOUR = 3600 * SECOND


class Machine:
    """A machine with three clocks, in nanoseconds."""

    def __init__(self) -> None:
        """Start it at a time in 2026, after one hour of suspension."""
        self.wall, self.monotonic, self.suspended = 1_790_000_000 * SECOND, 5 * HOUR, HOUR

    def run(self, nanoseconds: int) -> None:
        """Let time pass."""
        self.wall += nanoseconds
        self.monotonic += nanoseconds

    def suspend(self, nanoseconds: int) -> None:
        """Suspend it; the monotonic clock of Linux stands still."""
        self.wall += nanoseconds
        self.suspended += nanoseconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Return a machine whose clocks this process reads; its clock is not held."""
    made = Machine()
    with monkeypatch.context() as patch:
        patch.setattr(world._clock, "held", None)
        patch.setattr(world._clock, "holders", 0)
        patch.setattr(time, "time_ns", lambda: made.wall)
        patch.setattr(time, "monotonic_ns", lambda: made.monotonic)
        patch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
        patch.setattr(time, "clock_gettime_ns", lambda _: made.monotonic + made.suspended)
        yield made


def test_a_clock_that_is_set_while_it_is_held(machine: Machine) -> None:
    """Neither direction has an effect; afterwards, the wall clock counts again."""
    assert world.now() == machine.wall
    world.hold_clock()
    start = machine.wall
    for jump in (5 * HOUR, -30 * HOUR, 40_000 * HOUR):
        machine.wall += jump
        machine.run(SECOND)
    assert world.now() == start + 3 * SECOND
    assert world.at(machine.monotonic - SECOND) == start + 2 * SECOND
    assert world.at(machine.monotonic + HOUR) == world.now()
    assert world.wall() == machine.wall
    world.release_clock()
    assert world.now() == machine.wall


def test_a_second_holder_sets_the_clock_forward_only(machine: Machine) -> None:
    """The order of what the first holder records never changes."""
    world.hold_clock()
    start = machine.wall
    machine.wall -= HOUR
    world.hold_clock()
    assert world.now() == start
    machine.wall += 3 * HOUR
    world.hold_clock()
    assert world.now() == start + 2 * HOUR
    for _ in range(2):
        world.release_clock()
    machine.wall -= HOUR
    assert world.now() == start + 2 * HOUR
    world.release_clock()
    assert world.now() == machine.wall


def test_a_suspended_machine(machine: Machine) -> None:
    """The time of a suspension counts, even if the wall clock is set back afterwards."""
    world.hold_clock()
    start = machine.wall
    machine.suspend(8 * HOUR)
    assert world.now() == start + 8 * HOUR
    machine.wall -= 20 * HOUR
    machine.run(SECOND)
    assert world.now() == start + 8 * HOUR + SECOND
    world.release_clock()


def test_sessions_hold_the_clock(machine: Machine) -> None:
    """From the start of the first session to the end of the last one; an end without a start has no effect."""
    first, second = agentobs.session("first"), agentobs.session("second")
    first.open()
    start = world.now()
    second.open()
    machine.wall += HOUR
    first.close()
    first.close()
    assert world.now() == start
    second.close()
    assert world.now() == machine.wall
