"""The command of `make simulate`: runs seeds, and prints each failure with a minimized plan."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.minimization import minimized
from tests.simulation.plan import plan
from tests.simulation.simulation import Result, simulate
from tests.soak.figures import report


def main(arguments: list[str] | None = None) -> None:
    """Run simulations; exit with 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run exactly this seed, and print its steps")
    parser.add_argument("--processes", type=int, default=2, help="how many seeds to run at once")
    chosen = parser.parse_args(arguments)
    seeds = (
        [chosen.seed]
        if chosen.seed is not None
        else range(chosen.first, chosen.first + chosen.seeds)
    )
    totals, faults, failed = Counter[str](), Counter[str](), []
    if chosen.seed is not None:
        print("\n".join(f"  {number:3} {step}" for number, step in enumerate(plan(chosen.seed))))
    for result, description in results(seeds, chosen.processes):
        add(result, totals, faults)
        if result.failure:
            failed.append(result.seed)
            print(description, flush=True)
    spent = sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    counts = ", ".join(f"{count:,} {name}" for name, count in totals.items())
    print(f"{counts}; {spent:.0f} s of CPU time")
    print("faults:", ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items())))
    if chosen.seed is not None:
        print(f"digest of all calls: {result.digest}")
    report("simulation", len(failed), len(seeds))
    if failed:
        print(f"{len(failed)} seeds failed: {failed}")
    sys.exit(1 if failed else 0)


def results(seeds: Sequence[int], processes: int) -> Iterator[tuple[Result, str]]:
    """Yield the result of each seed, in order, with the description of its failure; several processes run them.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    if processes == 1 or len(seeds) == 1:
        yield from map(_run, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(_run, seeds)


def _run(seed: int) -> tuple[Result, str]:
    result = simulate(seed)
    return result, described(result) if result.failure else ""


def add(result: Result, totals: Counter[str], faults: Counter[str]) -> None:
    """Add the counts of a simulation to totals."""
    totals["seeds"] += 1
    totals["steps"] += result.steps
    totals["calls"] += result.calls
    totals["faults"] += result.faults.total()
    totals["records"] += result.records
    totals["acknowledged"] += result.acknowledged
    totals["checks"] += result.checks
    faults += result.faults


def described(result: Result) -> str:
    """Return the failure of a seed, with the shortest plan that still fails."""
    steps = minimized(result)
    lines = [
        f"seed {result.seed}: {result.failure}",
        f"  the shortest plan that still fails ({len(steps)} of {result.steps} steps):",
    ]
    lines += [f"  {number:3} {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([*lines, f"  run it again: make simulate SEED={result.seed}"])
