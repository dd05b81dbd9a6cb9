"""The trial of a fixture: two replays in fresh processes before the fixture is used.

The first run has the environment of the later test. The second run has a different working directory, hash seed, date
and time zone, so a fixture that depends on the current directory or on today's date fails now. If only the second run
fails, four more runs each make only one of the four changes, to find the change that causes the failure.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import tempfile
import zoneinfo
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from agentobs import world
from replay.agent_code.call_sites import is_agents
from replay.trial.trial_worker import Outcome, RunSpec, Worker

Change = Literal["date", "time zone", "hash seed", "working directory"]
"""A part of the environment that a run can change."""
CHANGES: tuple[Change, ...] = ("date", "time zone", "hash seed", "working directory")

DEADLINE_SECONDS = 30.0
"""The time limit for an agent that makes no progress; the default of a replay."""
GRACE_SECONDS = 10.0
"""The additional time for a process to import the SDK and to exit. Our choice."""
ROUNDS_MAX = 8
"""The maximum number of times that proposed rules are added. Our choice."""
HASH_SEED = "1234567"
"""An arbitrary seed that users are unlikely to set themselves."""
DAYS_AHEAD = 500
"""About 16 months, so the year, the month and the season differ. The date is in the future, because the test will run
in the future.
"""
HOURS_AHEAD = timedelta(hours=7, minutes=23, seconds=11)
ZONES = {"Pacific/Kiritimati": (14, "<+14>-14"), "Pacific/Pago_Pago": (-11, "<-11>11")}
"""Two time zones that are 25 hours apart, so that the date in one of them always differs from the local date. The value
is the number of hours ahead of UTC, and the POSIX notation for systems without a time zone database.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the trial of a fixture."""

    replays: bool
    """Whether both runs match without additional rules."""
    failed: Outcome | None = None
    """The failure of the first runs. If additional rules hide this failure, the later failure that they do not hide."""
    changes: Sequence[Change] = ()
    """The changes that cause the failure; empty if the run without changes also fails."""
    rules: Sequence[str] = ()
    """The rules that the failed runs proposed."""
    rules_suffice: bool = False
    """Whether both runs match with these rules."""


class Trials:
    """Runs the trials of the fixtures of a project. It is a context manager, because it keeps worker processes."""

    def __init__(self, project: Path, limit_s: float) -> None:
        """Prepare trials; no process is started.

        Args:
            project: the directory that contains the agents' files, and the working directory of the first run.
            limit_s: the number of seconds after which a run is stopped.
        """
        self._project, self._limit_s = project, limit_s
        self.limit_s = limit_s
        """The number of seconds after which a run is stopped."""
        self._plain = Worker(project, {})
        self._seeded = Worker(project, {"PYTHONHASHSEED": HASH_SEED})
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Trials:
        """Return this object; processes are started by the first run."""
        self._opened.enter_context(self._plain)
        self._opened.enter_context(self._seeded)
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop all processes."""
        self._opened.close()

    def verdict(self, fixture: Path) -> Verdict:
        """Run a trial; if it fails, repeat it with the proposed rules, as long as new rules are proposed."""
        rules: list[str] = []
        failure: tuple[Outcome, Sequence[Change]] | None = None
        for _ in range(ROUNDS_MAX):
            plain, changed = self.run(fixture, [(), CHANGES], rules)
            if plain.result == changed.result == "matched":
                return Verdict(True) if failure is None else Verdict(False, *failure, rules, True)
            proposed = dict.fromkeys([*plain.rules, *changed.rules])
            new = [rule for rule in proposed if rule not in rules]
            if failure is None or not new:
                failure = self._failure(fixture, plain, changed, rules)
            if not new:
                break
            rules += new
        failed, changes = failure or (None, ())
        return Verdict(False, failed, changes, rules)

    def _failure(
        self, fixture: Path, plain: Outcome, changed: Outcome, rules: Sequence[str]
    ) -> tuple[Outcome, Sequence[Change]]:
        """Return the failure to report, and the changes that cause it; no changes if the run without changes fails."""
        if plain.result != "matched":
            return plain, ()
        outcomes = self.run(fixture, [(each,) for each in CHANGES], rules)
        failures = [
            (change, outcome)
            for change, outcome in zip(CHANGES, outcomes, strict=True)
            if outcome.result != "matched"
        ]
        if not failures:
            return changed, CHANGES
        return failures[0][1], [change for change, _ in failures]

    def run(
        self, fixture: Path, change_sets: Sequence[Sequence[Change]], rules: Sequence[str]
    ) -> list[Outcome]:
        """Replay a fixture once for each set of changes, two in parallel if possible; return the outcomes in order."""
        by_seed = [
            [
                number
                for number, changes in enumerate(change_sets)
                if ("hash seed" in changes) is seeded
            ]
            for seeded in (False, True)
        ]
        outcomes: dict[int, Outcome] = {}
        with _scratch() as scratch:
            for pair in itertools.zip_longest(*by_seed):
                started = [
                    (
                        number,
                        worker,
                        self._spec(fixture, change_sets[number], rules, scratch / str(number)),
                    )
                    for number, worker in zip(pair, (self._plain, self._seeded), strict=True)
                    if number is not None
                ]
                for _, worker, spec in started:
                    worker.start(asdict(spec))
                outcomes |= {
                    number: self._outcome(worker, spec) for number, worker, spec in started
                }
        return [outcomes[number] for number in range(len(change_sets))]

    def _spec(
        self, fixture: Path, changes: Sequence[Change], rules: Sequence[str], scratch: Path
    ) -> RunSpec:
        """Return the description of a run, after creating a scratch folder for its files."""
        elsewhere = scratch / "directory"
        elsewhere.mkdir(parents=True)
        now = datetime.fromtimestamp(world.now() / 1e9, UTC)
        environment = {"AGENTOBS_HOME": str(scratch / "home")}
        if "time zone" in changes:
            environment["TZ"] = other_zone()
        return RunSpec(
            fixture=str(fixture.absolute()),
            project=str(self._project),
            directory=str(elsewhere if "working directory" in changes else self._project),
            environment=environment,
            shift_s=seconds_ahead(now) if "date" in changes else 0,
            rules=list(rules),
            deadline_s=min(DEADLINE_SECONDS, self._limit_s / 2),
            limit_s=self._limit_s,
            result=str(scratch / "result.json"),
            stacks=str(scratch / "stacks"),
        )

    def _outcome(self, worker: Worker, spec: RunSpec) -> Outcome:
        """Wait until a run has ended, and return its outcome."""
        code = worker.wait(self._limit_s + GRACE_SECONDS)
        result, stacks = Path(spec.result), Path(spec.stacks)
        if result.is_file():
            return Outcome(**json.loads(result.read_bytes()))
        if code is None or (stacks.is_file() and stacks.stat().st_size):
            return Outcome(
                "error",
                f"the agent did not end within {self._limit_s:g} seconds",
                site=_innermost(stacks, self._project),
                remedy="if the agent needs more time, use --check-timeout",
            )
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome("error", f"the process ended before the replay: {how}")


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Create a folder for runs; on exit, delete it with all files that agents left there."""
    folder = Path(tempfile.mkdtemp(prefix="agentobs-trial-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _innermost(stacks: Path, project: Path) -> str:
    """Return the innermost line of the agent's code in stacks from `faulthandler`, preferably of the main thread."""
    if not stacks.is_file():
        return ""
    threads = stacks.read_text(encoding="utf-8", errors="replace").split("\n\n")
    for thread in reversed(threads):
        for file, line, function in _FRAME.findall(thread):
            if is_agents(file):
                path = Path(file)
                shown = path.relative_to(project) if path.is_relative_to(project) else path
                return f"{shown}:{line} in {function}"
    return ""


def seconds_ahead(now: datetime) -> int:
    """Return a number of seconds that changes the year, month, day, weekday and hour if it is added to `now`."""
    for days in range(DAYS_AHEAD, 2 * DAYS_AHEAD):
        ahead = timedelta(days=days) + HOURS_AHEAD
        then = now + ahead
        units = ("year", "month", "day", "hour")
        if all(getattr(now, unit) != getattr(then, unit) for unit in units) and (
            now.weekday() != then.weekday()
        ):
            return int(ahead.total_seconds())
    raise AssertionError("no day of the range differs in all units")


def other_zone() -> str:
    """Return a time zone, as a value of `TZ`, whose current date differs from the local date."""
    now = datetime.fromtimestamp(world.now() / 1e9, UTC)
    local = (now + timedelta(seconds=world.zone_seconds())).date()
    for name, (hours, posix) in ZONES.items():
        if (now + timedelta(hours=hours)).date() != local:
            is_known = any(Path(folder, name).is_file() for folder in zoneinfo.TZPATH)
            return name if is_known else posix
    raise AssertionError("one of two time zones that are 25 hours apart must have a different date")
