"""Measuring: what work costs beside other work, never alone.

A machine that does other things too makes absolute times worthless. So variants of the same work take
turns within each round, and what counts is the median over the rounds of their ratio.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

Part = Literal["wall_ns", "thread_ns", "process_ns"]
PARTS: tuple[Part, ...] = ("wall_ns", "thread_ns", "process_ns")


@dataclass(frozen=True, slots=True)
class Cost:
    """What some work cost, in nanoseconds."""

    wall_ns: int = 0
    """Time that passed for the caller."""
    thread_ns: int = 0
    """CPU time of the caller's thread."""
    process_ns: int = 0
    """CPU time of the whole process, until all that the work set going was done."""

    def __add__(self, other: Cost) -> Cost:
        """Return the cost of both."""
        return Cost(
            self.wall_ns + other.wall_ns,
            self.thread_ns + other.thread_ns,
            self.process_ns + other.process_ns,
        )


Round = dict[str, Cost]
"""The cost of each variant, by name."""
T = TypeVar("T")


def cost_of(work: Callable[[], object], settle: Callable[[], object] | None = None) -> Cost:
    """Do `work`, then wait with `settle` for what it left to other threads, and return what it cost."""
    process = time.process_time_ns()
    wall, thread = time.perf_counter_ns(), time.thread_time_ns()
    work()
    thread, wall = time.thread_time_ns() - thread, time.perf_counter_ns() - wall
    if settle is not None:
        settle()
    return Cost(wall, thread, time.process_time_ns() - process)


def cost_in_threads(
    work: Callable[[], None], threads: int, settle: Callable[[], object] | None
) -> Cost:
    """Return what work costs that `threads` callers do at once; as the caller's CPU time, that of all of them.

    `settle` ends what the work set going, see `cost_of`.
    """
    spent: list[int] = []

    def measured() -> None:
        before = time.thread_time_ns()
        work()
        spent.append(time.thread_time_ns() - before)

    def begin() -> None:
        running = [threading.Thread(target=measured) for _ in range(threads)]
        for each in running:
            each.start()
        for each in running:
            each.join()

    whole = cost_of(begin, settle)
    assert len(spent) == threads, "a caller failed: what it cost is not what was to be measured"
    return Cost(whole.wall_ns, sum(spent), whole.process_ns)


def compare(variants: Mapping[str, Callable[[T], Cost]], inputs: Iterable[T]) -> list[Round]:
    """Give each input to each variant, in an order shuffled each time; a round is one input.

    An order that rotates would let each variant always inherit the caches of the same other one.
    """
    order = random.Random(1)
    rounds: list[Round] = []
    for each in inputs:
        names = order.sample(list(variants), len(variants))
        costs = {name: variants[name](each) for name in names}
        rounds.append({name: costs[name] for name in variants})
    return rounds


def total(rounds: Iterable[Round], name: str) -> Cost:
    """Return what a variant cost in all rounds together."""
    return sum((each[name] for each in rounds), Cost())


def ratio(rounds: Sequence[Round], name: str, floor: str, part: Part) -> float:
    """Return the median over the rounds of what `name` cost, as a multiple of what `floor` cost."""
    return float(median(getattr(each[name], part) / getattr(each[floor], part) for each in rounds))


def milliseconds(rounds: Sequence[Round], name: str, part: Part) -> float:
    """Return the median over the rounds of what `name` cost, in milliseconds: for the order of size."""
    return float(median(getattr(each[name], part) for each in rounds) / 1e6)
