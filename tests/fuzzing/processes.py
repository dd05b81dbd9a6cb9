"""Fuzzing in several processes: parts of a run, each in a separate process."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from tests.fuzzing.runner import Finding, Outcome, fuzz, guard_process, renew_watchdog
from tests.fuzzing.targets import TARGETS

PART_INPUTS = 50_000
"""The maximum number of inputs that a process runs."""


class Part(NamedTuple):
    """The inputs of a target that one process runs."""

    target: str
    seed: int
    first: int
    end: int
    """The number after that of the last input."""


def inputs_by_target(names: list[str], inputs: int, *, is_each: bool) -> dict[str, int]:
    """Return the number of inputs of each target: equal numbers, or numbers in proportion to the shares; at least one
    each.
    """
    if is_each:
        return dict.fromkeys(names, inputs)
    shares = sum(TARGETS[name].share for name in names)
    return {name: max(1, round(inputs * TARGETS[name].share / shares)) for name in names}


def parts(counts: dict[str, int], seed: int, first: int) -> Iterator[Part]:
    """Yield the parts of a run; those of slow targets are shorter."""
    for name, count in counts.items():
        size = max(100, round(PART_INPUTS * min(1, TARGETS[name].share / 50)))
        for start in range(first, first + count, size):
            yield Part(name, seed, start, min(start + size, first + count))


def run_parts(waiting: Iterator[Part], processes: int) -> Iterator[Outcome]:
    """Run each part in a separate process, and yield their outcomes; a process that dies is a failure of its part."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.targets"])
    running: dict[Any, tuple[Part, Any]] = {}
    while True:
        while len(running) < processes and (part := next(waiting, None)) is not None:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(part, sending))
            process.start()
            sending.close()
            running[receiving] = (part, process)
        if not running:
            return
        for ended in wait(list(running)):
            assert isinstance(ended, Connection)
            part, process = running.pop(ended)
            try:
                yield ended.recv()
            except EOFError:
                process.join()
                error = f"the process ended with status {process.exitcode}"
                yield Outcome(
                    part.target,
                    0,
                    findings=[Finding(part.target, part.seed, part.first, error, "", b"")],
                )
            process.join()


def _run(part: Part, result: Any) -> None:
    guard_process()
    renew_watchdog()
    target, numbers = TARGETS[part.target], range(part.first, part.end)
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        result.send(fuzz(target, Path(folder), seed=part.seed, numbers=numbers))
