"""The trial of a fixture: it is replayed twice, each time in a fresh process, before it is used.

The first try runs as the test will run. The second one has another working directory, hash seed, date and time zone,
so that a fixture which depends on this directory or on today's date fails now. If only the second try fails, the
fixture is replayed again with one of the four changed at a time, to find the one that matters.
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
from replay.trial.trial_worker import Order, Outcome, Worker

Change = Literal["date", "time zone", "hash seed", "working directory"]
"""The parts of the environment that a try may change."""
CHANGES: tuple[Change, ...] = ("date", "time zone", "hash seed", "working directory")

DEADLINE_SECONDS = 30.0
"""How long the agent may make no progress; the default of a replay."""
GRACE_SECONDS = 10.0
"""The extra time for a process to end itself, and to import the SDK. Our choice."""
ROUNDS_MAX = 8
"""How many times the rules that a divergence proposes are added. Our choice."""
HASH_SEED = "1234567"
"""An arbitrary seed that people are unlikely to set themselves."""
DAYS_AHEAD = 500
"""About 16 months: another year, month and season. The future, because that is when the test will run."""
HOURS_AHEAD = timedelta(hours=7, minutes=23, seconds=11)
ZONES = {"Pacific/Kiritimati": (14, "<+14>-14"), "Pacific/Pago_Pago": (-11, "<-11>11")}
"""Two zones 25 hours apart, so that the date of one always differs from the local date: hours ahead of UTC, and the
zone in POSIX notation, for systems without a time zone database."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the tries of a fixture."""

    replays: bool
    """Whether both tries match without further rules."""
    failed: Outcome | None = None
    """The first failure without further rules, or a later one if rules hide the first but not the later one."""
    changes: Sequence[Change] = ()
    """The changes that cause the failure if the unchanged try matches; empty if the unchanged try fails as well."""
    rules: Sequence[str] = ()
    """The rules that the tries propose; they hide all differences if `cured`."""
    cured: bool = False
    """Whether both tries match with these rules."""


class Trials:
    """Runs the trials of fixtures of a project; a context manager, because it keeps worker processes."""

    def __init__(self, project: Path, limit_s: float) -> None:
        """Prepare trials.

        Args:
            project: the directory that the agents' files lie under; the first try runs in it.
            limit_s: the seconds after which a try is stopped.
        """
        self._project, self._limit_s = project, limit_s
        self._plain = Worker(project, {})
        self._seeded = Worker(project, {"PYTHONHASHSEED": HASH_SEED})
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Trials:
        """Return this object; processes start with the first try."""
        self._opened.enter_context(self._plain)
        self._opened.enter_context(self._seeded)
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop all processes."""
        self._opened.close()

    def verdict(self, fixture: Path) -> Verdict:
        """Try a fixture; if it fails, try it again with the proposed rules, as long as further rules are proposed."""
        rules: list[str] = []
        failure: tuple[Outcome, Sequence[Change]] | None = None
        for _ in range(ROUNDS_MAX):
            plain, changed = self.tried(fixture, [(), CHANGES], rules)
            if plain.result == changed.result == "matched":
                return Verdict(True) if failure is None else Verdict(False, *failure, rules, True)
            proposed = dict.fromkeys([*plain.rules, *changed.rules])
            new = [rule for rule in proposed if rule not in rules]
            if failure is None or not new:
                failure = self._named(fixture, plain, changed, rules)
            if not new:
                break
            rules += new
        failed, changes = failure or (None, ())
        return Verdict(False, failed, changes, rules)

    def _named(
        self, fixture: Path, plain: Outcome, changed: Outcome, rules: Sequence[str]
    ) -> tuple[Outcome, Sequence[Change]]:
        """Return the failure to report and the changes that cause it; no changes if the unchanged try fails."""
        if plain.result != "matched":
            return plain, ()
        alone = self.tried(fixture, [(each,) for each in CHANGES], rules)
        guilty = [
            (change, outcome)
            for change, outcome in zip(CHANGES, alone, strict=True)
            if outcome.result != "matched"
        ]
        if not guilty:
            return changed, CHANGES
        return guilty[0][1], [change for change, _ in guilty]

    def tried(
        self, fixture: Path, tries: Sequence[Sequence[Change]], rules: Sequence[str]
    ) -> list[Outcome]:
        """Replay a fixture once for each set of changes, two at a time if possible, and return the outcomes."""
        by_seed = [
            [number for number, changes in enumerate(tries) if ("hash seed" in changes) is seeded]
            for seeded in (False, True)
        ]
        done: dict[int, Outcome] = {}
        with _scratch() as scratch:
            for pair in itertools.zip_longest(*by_seed):
                begun = [
                    (
                        number,
                        worker,
                        self._order(fixture, tries[number], rules, scratch / str(number)),
                    )
                    for number, worker in zip(pair, (self._plain, self._seeded), strict=True)
                    if number is not None
                ]
                for _, worker, order in begun:
                    worker.begin(asdict(order))
                done |= {number: self._outcome(worker, order) for number, worker, order in begun}
        return [done[number] for number in range(len(tries))]

    def _order(
        self, fixture: Path, changes: Sequence[Change], rules: Sequence[str], scratch: Path
    ) -> Order:
        """Return the order for a try, with a new scratch folder for its files."""
        elsewhere = scratch / "directory"
        elsewhere.mkdir(parents=True)
        now = datetime.fromtimestamp(world.now() / 1e9, UTC)
        environment = {"AGENTOBS_HOME": str(scratch / "home")}
        if "time zone" in changes:
            environment["TZ"] = other_zone()
        return Order(
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

    def _outcome(self, worker: Worker, order: Order) -> Outcome:
        """Wait for the end of a try, and return its outcome."""
        code = worker.end(self._limit_s + GRACE_SECONDS)
        result, stacks = Path(order.result), Path(order.stacks)
        if result.is_file():
            return Outcome(**json.loads(result.read_bytes()))
        if code is None or (stacks.is_file() and stacks.stat().st_size):
            return Outcome(
                "error",
                f"the agent did not end within {self._limit_s:g} seconds",
                site=_innermost(stacks, self._project),
                cure="if it needs longer, use --check-timeout",
            )
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome("error", f"its process ended before the replay did: {how}")


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Create a folder for tries, and delete it afterwards with all files that agents left there."""
    folder = Path(tempfile.mkdtemp(prefix="agentobs-trial-")).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _innermost(stacks: Path, project: Path) -> str:
    """Return the innermost line of the agent's code in stacks that `faulthandler` wrote; the main thread's first."""
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
    """Return by how many seconds to shift the clock, so that year, month, day, weekday and time of day all change."""
    for days in range(DAYS_AHEAD, 2 * DAYS_AHEAD):
        ahead = timedelta(days=days) + HOURS_AHEAD
        then = now + ahead
        units = ("year", "month", "day", "hour")
        if all(getattr(now, unit) != getattr(then, unit) for unit in units) and (
            now.weekday() != then.weekday()
        ):
            return int(ahead.total_seconds())
    raise AssertionError("two weeks hold such a day")


def other_zone() -> str:
    """Return a time zone, for `TZ`, whose current date differs from the local date."""
    now = datetime.fromtimestamp(world.now() / 1e9, UTC)
    local = (now + timedelta(seconds=world.zone_seconds())).date()
    for name, (hours, posix) in ZONES.items():
        if (now + timedelta(hours=hours)).date() != local:
            is_known = any(Path(place, name).is_file() for place in zoneinfo.TZPATH)
            return name if is_known else posix
    raise AssertionError("one of two zones that are 25 hours apart has another date")
