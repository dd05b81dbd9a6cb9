"""Minimization: removes steps and faults from a failing plan as long as it still fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tests.simulation.plan import Step, plan
from tests.simulation.simulation import Result, simulate

RUNS_MAX = 300
"""The maximum number of shorter plans that are tried."""


def minimized(result: Result) -> list[Step]:
    """Return the shortest plan found that breaks the same invariant; at most `RUNS_MAX` plans are tried."""
    steps, runs = plan(result.seed), 0
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for shorter in _shorter(steps):
            runs += 1
            if runs > RUNS_MAX:
                return steps
            if _invariant(simulate(result.seed, shorter)) == _invariant(result):
                steps, is_shorter = shorter, True
                break
    return steps


def _invariant(result: Result) -> str | None:
    """Return which invariant is broken: the start of the description of the failure."""
    return None if result.failure is None else result.failure.partition(":")[0][:60]


def _shorter(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield plans without some of the steps, longest parts first, then plans without one of the faults."""
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield [*steps[:start], *steps[start + size :]]
        size //= 2
    for number, step in enumerate(steps):
        for index in range(len(step.faults)):
            faults = step.faults[:index] + step.faults[index + 1 :]
            yield [*steps[:number], dataclasses.replace(step, faults=faults), *steps[number + 1 :]]
