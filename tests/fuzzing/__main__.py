"""`python -m tests.fuzzing` runs mutated inputs of all targets, and writes each input that fails to a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.fuzzing.processes import inputs_by_target, parts, run_parts
from tests.fuzzing.runner import Finding, Outcome
from tests.fuzzing.targets import TARGETS
from tests.soak.counted_cases import DURATIONS, SCALE
from tests.soak.figures import report


def main() -> int:
    """Fuzz the named targets, or all of them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="the number of inputs of all targets together"
    )
    parser.add_argument(
        "--each", action="store_true", help="run this number of inputs of each target"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first input of each target"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("fuzzing-failures"))
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(
            f"unknown target {', '.join(sorted(unknown))}; expected some of {', '.join(TARGETS)}"
        )
    counts = inputs_by_target(
        options.targets or list(TARGETS), options.inputs, is_each=options.each
    )
    started = time.monotonic()
    outcomes: dict[str, Outcome] = {name: Outcome(name) for name in counts}
    for found in run_parts(parts(counts, options.seed, options.first), options.processes):
        whole = outcomes[found.target]
        whole.inputs += found.inputs
        whole.accepted += found.accepted
        whole.seconds += found.seconds
        for each in found.findings:
            if each.error not in {known.error for known in whole.findings}:
                whole.findings.append(each)
                path = _written(each, options.failures)
                print(f"{each}\n{each.details}  smallest input: {path}", flush=True)
    for outcome in outcomes.values():
        _print_line(outcome)
    if durations := os.environ.get(DURATIONS):
        # The start of the processes is not included, because it takes the same time at any scale.
        scale = float(os.environ.get(SCALE, "1"))
        rows = [
            {"test": o.target, "seconds": o.seconds / options.processes, "chosen": scale, "all": 1}
            for o in outcomes.values()
        ]
        Path(durations).write_text(json.dumps(rows) + "\n", encoding="utf-8")
    failures = sum(len(outcome.findings) for outcome in outcomes.values())
    total = sum(outcome.inputs for outcome in outcomes.values())
    report("fuzzing", failures, total)
    print(f"{total:,} inputs in {time.monotonic() - started:.0f} s, {failures} failures")
    return 1 if failures else 0


def _print_line(outcome: Outcome) -> None:
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0
    print(
        f"{outcome.target:20} {outcome.inputs:>9,} inputs  {outcome.accepted / max(outcome.inputs, 1):>4.0%} accepted  "
        f"{rate:>8,.0f}/s  {len(outcome.findings)} failures"
    )


def _written(finding: Finding, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{finding.target}-{finding.seed}-{finding.number}"
    path.write_bytes(finding.data)
    return path


if __name__ == "__main__":
    sys.exit(main())
