"""`python -m tests.soak` runs all long tests, measures all figures, and writes docs/scorecard.md: `make soak`.

Steps that count use both cores. The steps that measure times run after them, alone. With `--scale 0.01`, each step runs
a hundredth of its cases; the page is then written to build/scorecard.md, and the duration of a whole run is estimated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.soak import scorecard
from tests.soak.counted_cases import DURATIONS, SCALE
from tests.soak.figures import VARIABLE, measurements, report

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
FUZZING_INPUTS = 10_000_000
SEEDS = 5_000
"""The seeds of the simulation."""
FIRST_SEED = 6_000
"""Its first seed: the long tests of pytest simulate lower ones."""
PROCESSES = 2
COUNTED = (
    "tests/recording/test_faults.py",
    "tests/recording/test_forks.py",
    "tests/recording/test_concurrency_models.py",
    "tests/exporters/test_delivery.py",
    "tests/store/test_lock_down.py",
    "tests/store/test_sql_worker.py",
    "tests/test_canary.py",
)
"""Files that `make test` runs as well, whose cases are counted."""
VERDICTS = {
    "lag of the event loop, p99, ms more with recording": "recording_lag",
    "secrets with a form, missed": "redaction_recall",
    "passwords and keys, missed": "redaction_assignments",
    "false positives per 100 KB": "redaction_false_positives",
    "redaction, prose, us per KB": "redaction_cost",
    "redaction, adversarial texts, us per KB": "redaction_hostile_cost",
}
"""The figures of benchmarks, by the labels of their targets."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the run."""

    name: str
    command: tuple[str, ...]
    is_scaled: bool = True
    """Whether its duration depends on the scale."""


def steps(scale: float, *, has_simulation: bool) -> Iterator[Step]:
    """Yield the steps of a run."""
    pytest = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.soak.counted_cases",
        "-n",
        str(PROCESSES),
    )
    options = ("--dist", "loadgroup", "--hypothesis-profile", "soak", "--timeout", "3600")
    yield Step("long tests", (*pytest, *options, "-m", "soak or crash"))
    yield Step("counted tests", (*pytest, *options, *COUNTED))
    inputs = max(round(FUZZING_INPUTS * scale), 1)
    yield Step("fuzzing", (sys.executable, "-m", "tests.fuzzing", "--inputs", str(inputs)))
    if has_simulation:
        seeds = f"SEEDS={max(round(SEEDS * scale), 1)}"
        yield Step("simulation", ("make", "simulate", seeds, f"ARGS=--first {FIRST_SEED}"))
    yield Step("timings", (sys.executable, "-m", "tests.soak.timings"))
    command = (
        sys.executable,
        "-m",
        "benchmarks",
        "lag",
        "redaction",
        "--verdicts",
        str(BUILD / "verdicts.json"),
    )
    yield Step("benchmarks", command, is_scaled=False)


def main() -> int:
    """Run all steps; return 1 if one failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the cases to run")
    parser.add_argument(
        "--steps", nargs="*", metavar="STEP", help="only these steps, such as timings"
    )
    options = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    lines, durations = BUILD / "scorecard.jsonl", BUILD / "durations.jsonl"
    for each in (lines, durations):
        each.unlink(missing_ok=True)
    environment = {
        **os.environ,
        VARIABLE: str(lines),
        DURATIONS: str(durations),
        SCALE: str(options.scale),
    }
    has_simulation = "\nsimulate:" in (ROOT / "Makefile").read_text("utf-8")
    failed: list[str] = []
    whole = 0.0
    for step in steps(options.scale, has_simulation=has_simulation):
        if options.steps and step.name not in options.steps:
            continue
        seconds = _run(step, environment, failed)
        estimated = _whole_duration(step, seconds, options.scale, durations)
        whole += estimated
        print(
            f"== {step.name}: {seconds:.0f} s; a whole run takes about {estimated / 60:.0f} min",
            flush=True,
        )
    os.environ[VARIABLE] = str(lines)
    _collect_verdicts(BUILD / "verdicts.json")
    found = scorecard.measured(list(measurements(lines)))
    path = scorecard.PAGE if options.scale == 1 and not options.steps else BUILD / "scorecard.md"
    path.write_text(scorecard.page(found, datetime.now(UTC).date(), failed), encoding="utf-8")
    print(f"Written to {path}. A whole run takes about {whole / 3600:.1f} hours.")
    return 1 if failed else 0


def _run(step: Step, environment: Mapping[str, str], failed: list[str]) -> float:
    """Run a step, and return its duration in seconds."""
    print(f"== {step.name}: {' '.join(step.command)}", flush=True)
    started = time.monotonic()
    if subprocess.run(step.command, cwd=ROOT, env=environment, check=False).returncode:
        failed.append(" ".join(step.command))
    return time.monotonic() - started


def _whole_duration(step: Step, seconds: float, scale: float, durations: Path) -> float:
    """Return how long a step takes in a full run, in seconds."""
    if not step.is_scaled or scale == 1:
        return seconds
    if "pytest" not in step.command:
        return seconds / scale
    rows: list[dict[str, Any]] = json.loads(durations.read_text("utf-8").splitlines()[-1])
    return sum(row["seconds"] * row["all"] / row["chosen"] for row in rows) / PROCESSES


def _collect_verdicts(path: Path) -> None:
    """Report the figures of benchmarks."""
    if path.exists():
        for each in json.loads(path.read_text("utf-8")):
            if each["label"] in VERDICTS:
                note = each["why"] if each["measured"] > each["target"] else ""
                report(VERDICTS[each["label"]], each["measured"], each["n"], note)
        path.unlink()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted; the scorecard was not written.")
