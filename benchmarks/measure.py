"""Measurement of costs, always relative to other work.

Absolute times mean little on a machine that also runs other programs. Therefore, variants of the same work alternate in
each round, and the result is the median over all rounds of the ratio of their costs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

Part = Literal["wall_ns", "thread_ns", "process_ns"]
PARTS: tuple[Part, ...] = ("wall_ns", "thread_ns", "process_ns")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of some work, in nanoseconds."""

    wall_ns: int = 0
    """The wall time of the caller."""
    thread_ns: int = 0
    """CPU time of the caller's thread."""
    process_ns: int = 0
    """CPU time of the process until all work that was started in other threads is done."""

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of both costs."""
        return Cost(
            self.wall_ns + other.wall_ns,
            self.thread_ns + other.thread_ns,
            self.process_ns + other.process_ns,
        )


Round = dict[str, Cost]
"""The cost of each variant by name."""
T = TypeVar("T")


def cost_of(work: Callable[[], object], settle: Callable[[], object] | None = None) -> Cost:
    """Call `work`, then wait with `settle` until other threads have finished the work; return the cost."""
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
    """Return the cost of concurrent calls of `work` in `threads` threads.

    `thread_ns` is the sum over these threads. `settle` waits for work in other threads, see `cost_of`.
    """
    spent: list[int] = []

    def measured() -> None:
        before = time.thread_time_ns()
        work()
        spent.append(time.thread_time_ns() - before)

    def run_all() -> None:
        started = [threading.Thread(target=measured) for _ in range(threads)]
        for each in started:
            each.start()
        for each in started:
            each.join()

    cost = cost_of(run_all, settle)
    assert len(spent) == threads, (
        "a thread failed, so the measured cost is not the cost of the work"
    )
    return Cost(cost.wall_ns, sum(spent), cost.process_ns)


def compare(variants: Mapping[str, Callable[[T], Cost]], inputs: Iterable[T]) -> list[Round]:
    """Pass each input to all variants, in a random order; each input is a round.

    In a fixed or rotating order, each variant would always run with the CPU caches that the same other variant left.
    """
    order = random.Random(1)
    rounds: list[Round] = []
    for each in inputs:
        names = order.sample(list(variants), len(variants))
        costs = {name: variants[name](each) for name in names}
        rounds.append({name: costs[name] for name in variants})
    return rounds


def total(rounds: Iterable[Round], name: str) -> Cost:
    """Return the total cost of a variant in all rounds."""
    return sum((each[name] for each in rounds), Cost())


def ratio(rounds: Sequence[Round], name: str, floor: str, part: Part) -> float:
    """Return the median over the rounds of the cost of `name` divided by the cost of `floor`."""
    return float(median(getattr(each[name], part) / getattr(each[floor], part) for each in rounds))


def milliseconds(rounds: Sequence[Round], name: str, part: Part) -> float:
    """Return the median cost of `name` over the rounds in milliseconds, which only shows the order of magnitude."""
    return float(median(getattr(each[name], part) for each in rounds) / 1e6)


def peak_kb() -> int:
    """Return the peak memory of this process in KB, because `getrusage` would also count its parent's memory."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
