"""`python -m tests.soak` runs all long tests, measures all figures, and writes docs/scorecard.md: `make soak`.

Steps that count use both cores. The steps that measure times run after them, alone. After each step, its figures
replace the earlier ones in docs/scorecard.json and docs/scorecard.md. With `--scale 0.01`, each step runs a hundredth
of its cases; the page is then written to build/scorecard.md, and the duration of a whole run is estimated.

Each finished step is kept in build/soak/. A run that was interrupted continues with the next step if it is started
again at the same commit and scale. A step that failed has finished as well. `--fresh` starts over, and `--steps` runs
the named steps again. The steps without figures that take long run only if they are named: the complete proofs of
failing agents, and the slow tests and the tests in the browser, which make CI short.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.soak import scorecard
from tests.soak.changed_areas import BROWSER_STEP, SLOW_STEP
from tests.soak.counted_cases import DURATIONS, SCALE
from tests.soak.figures import VARIABLE, line_of, measurements
from tests.soak.finished_steps import (
    FinishedStep,
    FinishedSteps,
    commit_of,
    last_steps,
    write_last_steps,
)

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
_VERDICTS = BUILD / "verdicts.json"
_CACHE = BUILD / "pytest"
FUZZING_INPUTS = 10_000_000
FUZZING_STEPS = 10
"""The steps of the fuzzing, each with its own seed, so that little is lost if a run is interrupted."""
SEEDS = 5_000
"""The seeds of the simulation."""
FIRST_SEED = 1_000
"""Its first seed: the tests of pytest simulate lower ones."""
PROCESSES = 2
FAILED = 1
"""The exit status of pytest if tests failed."""
INTERRUPTED = 2
"""The exit status of pytest if it was interrupted."""
COUNTED = (
    "tests/recording/test_faults.py",
    "tests/recording/test_forks.py",
    "tests/recording/test_concurrency_models.py",
    "tests/exporters/test_delivery.py",
    "tests/store/test_lock_down.py",
    "tests/store/test_sql_worker.py",
    "tests/test_canary.py",
)
"""Files that `make test` runs in part, whose cases are counted."""
LONG = {
    "kills": ("tests/soak/test_kills.py",),
    "damage": ("tests/soak/test_power_loss.py", "tests/soak/test_corruptions.py"),
    "generated agents": ("tests/replay/test_generated_agents.py",),
    "failing agents": ("tests/failing_agents",),
}
"""The files of the longest tests, by the steps that run them."""
WITHOUT_FIGURES = "failing agents"
"""The step of these that measures no figure."""
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
    is_optional: bool = False
    """Whether it runs only if it is named; it measures no figures."""


def steps(scale: float) -> Iterator[Step]:
    """Yield the steps of a run."""
    python = sys.executable
    plain = (python, "-m", "pytest", "-q", "-n", str(PROCESSES), "--dist", "loadgroup")
    pytest = (
        *plain,
        "-p",
        "tests.soak.counted_cases",
        "--hypothesis-profile",
        "soak",
        "--timeout",
        "3600",
    )
    for name, paths in LONG.items():
        yield Step(name, (*pytest, "-m", "soak", *paths), is_optional=name == WITHOUT_FIGURES)
    others = [f"--ignore={path}" for paths in (*LONG.values(), COUNTED) for path in paths]
    yield Step("other tests", (*pytest, "-m", "soak", *others))
    # The cache of such a step has only the failures of its own run.
    kept = (*plain, "-o", f"cache_dir={_CACHE}", "--cache-clear")
    slow = (*kept, "-m", "(slow or crash) and not soak")
    yield Step(SLOW_STEP, slow, is_scaled=False, is_optional=True)
    browser = (*kept, "-m", "browser", "tests/browser")
    yield Step(BROWSER_STEP, browser, is_scaled=False, is_optional=True)
    yield Step("counted tests", (*pytest, "-m", "soak or not soak", *COUNTED))
    seeds = ("--seeds", str(max(round(SEEDS * scale), 1)), "--first", str(FIRST_SEED))
    simulation = ("env", "PYTHONHASHSEED=0", python, "-m", "tests.simulation", *seeds)
    yield Step("simulation", simulation)
    inputs = str(max(round(FUZZING_INPUTS / FUZZING_STEPS * scale), 1))
    for seed in range(FUZZING_STEPS):
        fuzzing = (python, "-m", "tests.fuzzing", "--inputs", inputs, "--seed", str(seed))
        yield Step(f"fuzzing {seed + 1} of {FUZZING_STEPS}", fuzzing)
    yield Step("timings", (python, "-m", "tests.soak.timings"))
    benchmarks = (python, "-m", "benchmarks", "lag", "redaction", "--verdicts", str(_VERDICTS))
    yield Step("benchmarks", benchmarks, is_scaled=False)


def main() -> int:
    """Run all steps that have not finished; return 1 if one failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the cases to run")
    parser.add_argument(
        "--steps", nargs="*", metavar="STEP", help="only these steps, even if they have finished"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the steps that have finished")
    options = parser.parse_args()
    known = list(steps(options.scale))
    if unknown := set(options.steps or ()) - {step.name for step in known}:
        names = ", ".join(step.name for step in known)
        parser.error(f"unknown step {', '.join(sorted(unknown))}; expected some of {names}")
    try:
        commit = commit_of(
            ROOT, [str(each.relative_to(ROOT)) for each in (scorecard.PAGE, scorecard.LAST_STEPS)]
        )
    except (OSError, subprocess.CalledProcessError):
        parser.error(f"{ROOT} is not a checkout of git; figures belong to a commit")
    finished = FinishedSteps(BUILD / "soak", commit, options.scale)
    if options.fresh:
        finished.clear()

    def measure(step: Step) -> FinishedStep | None:
        ended = measured_step(step, commit, options.scale, BUILD)
        if ended and options.scale == 1:
            publish(ended, [each.name for each in known])
        return ended

    ended = run_steps(known, finished, measure, options.steps)
    path = scorecard.PAGE
    if options.scale != 1:
        path = BUILD / "scorecard.md"
        path.write_text(scorecard.page(ended), encoding="utf-8")
    hours = sum(step.whole_seconds for step in ended) / 3600
    print(f"Written to {path}. All cases of these steps take about {hours:.1f} hours.")
    wanted = options.steps or [step.name for step in known if not step.is_optional]
    passed = {step.name for step in ended if not step.failed}
    return 0 if passed.issuperset(wanted) else 1


def publish(
    ended: FinishedStep,
    names: Sequence[str],
    path: Path = scorecard.LAST_STEPS,
    page: Path = scorecard.PAGE,
) -> None:
    """Replace the earlier measurement of a step in docs/scorecard.json, and write docs/scorecard.md.

    Args:
        ended: the step that was measured.
        names: the names of all steps, in order; measurements of other steps are removed.
        path: the file of the last measurements.
        page: the page.
    """
    by_name = {step.name: step for step in last_steps(path, names)} | {ended.name: ended}
    steps = [by_name[name] for name in names if name in by_name]
    write_last_steps(path, steps)
    page.write_text(scorecard.page(steps), encoding="utf-8")


def run_steps(
    known: Sequence[Step],
    finished: FinishedSteps,
    measure: Callable[[Step], FinishedStep | None],
    names: Iterable[str] | None = None,
) -> list[FinishedStep]:
    """Run steps, and return all that have finished, in order, including those of earlier runs.

    Args:
        known: all steps.
        finished: the steps that have finished in earlier runs; each step that finishes is added at once.
        measure: runs a step; None if it was killed or interrupted.
        names: the steps to run, even if they have finished; None for all that are not optional and have not finished.
    """
    for step in known:
        if step.name not in names if names else step.is_optional or finished.load(step.name):
            continue
        print(f"== {step.name}: {' '.join(step.command)}", flush=True)
        if (ended := measure(step)) is None:
            print(f"== {step.name}: interrupted; it has no figures", flush=True)
            continue
        finished.save(ended)
        print(
            f"== {step.name}: {ended.seconds:.0f} s; all of its cases take about "
            f"{ended.whole_seconds / 60:.0f} min",
            flush=True,
        )
    return [ended for step in known if (ended := finished.load(step.name))]


def measured_step(step: Step, commit: str, scale: float, build: Path) -> FinishedStep | None:
    """Run the command of a step; return its figures, or None if it was killed or interrupted."""
    build.mkdir(exist_ok=True)
    lines, durations = build / "scorecard.jsonl", build / "durations.jsonl"
    for each in (lines, durations, _VERDICTS):
        each.unlink(missing_ok=True)
    environment = {
        **os.environ,
        VARIABLE: str(lines),
        DURATIONS: str(durations),
        SCALE: str(scale),
    }
    started = time.monotonic()
    status = subprocess.run(step.command, cwd=ROOT, env=environment, check=False).returncode
    is_interrupted = "pytest" in step.command and status == INTERRUPTED
    if status < 0 or is_interrupted:
        return None
    seconds = time.monotonic() - started
    return FinishedStep(
        step.name,
        commit,
        scale,
        datetime.now(UTC).date().isoformat(),
        _machine(),
        seconds,
        _whole_seconds(step, seconds, scale, durations),
        " ".join(step.command) if status else "",
        () if step.is_optional else (*measurements(lines), *_verdicts(_VERDICTS)),
        failed_files(_CACHE) if status == FAILED and str(_CACHE) in " ".join(step.command) else (),
    )


def failed_files(cache: Path) -> tuple[str, ...]:
    """Return the files whose tests failed in the last run of pytest with this cache, relative to the checkout."""
    try:
        failed = json.loads((cache / "v/cache/lastfailed").read_text("utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(sorted({test.partition("::")[0] for test in failed}))


def _whole_seconds(step: Step, seconds: float, scale: float, durations: Path) -> float:
    """Return how long a step takes in a full run, in seconds."""
    if not step.is_scaled or scale == 1:
        return seconds
    if not durations.exists():
        return seconds / scale
    rows: list[dict[str, Any]] = json.loads(durations.read_text("utf-8").splitlines()[-1])
    processes = PROCESSES if "pytest" in step.command else 1
    return float(sum(row["seconds"] * row["all"] / row["chosen"] for row in rows) / processes)


def _machine() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {python}"


def _verdicts(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of benchmarks."""
    if not path.exists():
        return
    for each in json.loads(path.read_text("utf-8")):
        if each["label"] in VERDICTS:
            note = each["why"] if each["measured"] > each["target"] else ""
            yield line_of(VERDICTS[each["label"]], each["measured"], each["n"], note)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Interrupted. Run it again to continue with the step that was interrupted.")
