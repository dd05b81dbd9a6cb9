"""The figures of docs/scorecard.md: what they measure, their targets, and the file in which measurements are collected.

A measurement is one line of JSON in the file that `AGENTOBS_SCORECARD` names. Several processes may append to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

VARIABLE = "AGENTOBS_SCORECARD"
"""The environment variable with the path of the file; without it, nothing is collected."""

Merge = Literal["sum", "max", "min"]
"""How several measurements of one figure are combined into one value."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the scorecard."""

    name: str
    text: str
    """What it measures."""
    target: float
    """The value that it should not exceed, or not fall below."""
    unit: str
    counted: str
    """What `n` counts."""
    command: str
    """The command that measures it alone."""
    merge: Merge = "sum"
    is_minimum: bool = False
    """Whether the target is a lower bound."""
    why: str = ""
    """A known reason for missing the target."""

    def is_met(self, value: float) -> bool:
        """Return whether a value reaches the target."""
        return value >= self.target if self.is_minimum else value <= self.target


_TIMINGS = "python -m tests.soak.timings"
_LOADED = "Times depend on the machine: with two cores, threads of the test wait for a core."

FIGURES: tuple[Figure, ...] = (
    Figure("kills", "acknowledged records lost or doubled after SIGKILL", 0, "records", "kills",
           "pytest -m soak tests/soak/test_kills.py"),
    Figure("power_loss", "disk images after a power loss that cannot be opened, or lack an acknowledged record", 0,
           "images", "images", "pytest -m soak tests/soak/test_power_loss.py"),
    Figure("loss_window", "time until a written record is synced, by default", 200, "ms", "syncs", _TIMINGS, "max",
           why="It is the interval of 180 ms and the duration of one sync of this disk."),
    Figure("disk_faults", "failing, short, interrupted and hanging system calls with a wrong outcome", 0, "cases",
           "cases", "pytest tests/recording/test_faults.py"),
    Figure("corruptions", "damaged files that are accepted silently", 0, "files", "corruptions", "make soak"),
    Figure("exit_delay", "slowest exit with a dead, hung or overloaded (503) collector", 250, "ms", "exits",
           _TIMINGS, "max", why=_LOADED),
    Figure("export_memory", "memory over the baseline with a dead collector, 2,500 events of 1 MB", 64, "MB", "events",
           _TIMINGS, "max"),
    Figure("burst_loss", "items of a burst lost with a healthy collector", 0, "items", "items",
           "pytest -m 'crash or not crash' tests/exporters/test_delivery.py -k burst"),
    Figure("hung_disk_lag", "lag of the event loop while the disk hangs, 99.9th percentile", 5, "ms", "ticks",
           _TIMINGS, "max", why=_LOADED),
    Figure("flush_overrun", "time beyond t until `flush(t)` returns False with a hung disk", 50, "ms", "calls",
           _TIMINGS, "max", why=_LOADED),
    Figure("forks", "combinations of forks, threads, signals and exits that lose or double a record, crash or hang",
           0, "combinations", "combinations", "pytest -m 'crash or not crash' tests/recording/test_forks.py"),
    Figure("rebuild", "tables that differ after the store was deleted and rebuilt from the segments", 0, "tables",
           "rows", _TIMINGS),
    Figure("rebuild_time", "rebuilding a store from 1 GB of facts", 60, "s", "MB", _TIMINGS, "max", why=_LOADED),
    Figure("redaction_recall", "planted secrets in a known format that are missed", 0.01, "share", "secrets",
           "python -m benchmarks redaction", "max"),
    Figure("redaction_assignments", "planted passwords and keys in assignments that are missed", 0.05, "share",
           "secrets", "python -m benchmarks redaction", "max"),
    Figure("redaction_false_positives", "benign places per 100 KB that are mistaken for secrets, worst corpus", 1,
           "places", "corpora", "python -m benchmarks redaction", "max"),
    Figure("redaction_cost", "search for secrets per KB, typical text", 15, "us", "rounds",
           "python -m benchmarks redaction", "max", why=_LOADED),
    Figure("redaction_hostile_cost", "search for secrets per KB, hostile text", 150, "us", "rounds",
           "python -m benchmarks redaction", "max", why="The slowest text consists only of names of secrets."),
    Figure("canaries", "kinds of content found outside the content files", 0, "cases", "cases",
           "pytest tests/test_canary.py"),
    Figure("sql_attacks", "SQL statements that reach files, network, extensions or settings", 0, "statements",
           "statements", "pytest tests/store/test_lock_down.py"),
    Figure("sql_overruns", "SQL statements that exceed the limits of time or memory", 0, "statements", "statements",
           "pytest tests/store/test_sql_worker.py -k bomb"),
    Figure("fuzzing", "inputs of any format with an undocumented error, a hang, more than 512 MB, or code that ran", 0,
           "inputs", "inputs", "make fuzz INPUTS=10000000"),
    Figure("determinism", "generated agents whose replay differs, or whose change is not reported", 0, "agents",
           "seeds", "pytest -m soak tests/replay/test_generated_agents.py"),
    Figure("simulation", "seeds of the simulated recorder that violate an invariant", 0, "seeds", "seeds",
           "make simulate"),
    Figure("concurrency", "concurrency models that lose or double a record: fork, spawn, forkserver, uvloop, gevent, "
           "subinterpreters", 0, "models", "models",
           "pytest -m 'crash or not crash' tests/recording/test_concurrency_models.py"),
    Figure("recording_lag", "event-loop lag that recording adds, with four streams, 99th percentile", 1, "ms",
           "rounds", "python -m benchmarks lag", "max", why=_LOADED),
    Figure("span_call",
           "longest call that starts or ends a span, of 10,000 spans after a garbage collection; median of the rounds",
           5, "ms", "rounds", _TIMINGS, "max", why=_LOADED),
)  # fmt: skip
"""All figures, in the order of docs/scorecard.md."""

BY_NAME = {figure.name: figure for figure in FIGURES}


def line_of(name: str, value: float, n: int, note: str = "", **more: Any) -> dict[str, Any]:
    """Return a measurement of a figure; the arguments are those of `report`."""
    figure = BY_NAME.get(name)
    known = (
        {"unit": figure.unit, "target": figure.target, "command": figure.command} if figure else {}
    )
    return {
        "figure": name,
        "value": value,
        "n": n,
        **known,
        **({"note": note} if note else {}),
        **more,
    }


def report(name: str, value: float, n: int, note: str = "", **more: Any) -> None:
    """Append a measurement of a figure, if measurements are collected.

    Args:
        name: the name of a figure; other names are shown as well, with `unit`, `target` and `command` in `more`.
        value: the measured value, in the unit of the figure.
        n: how many cases it is based on.
        note: the reason if the target is missed.
        more: more fields.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = line_of(name, value, n, note, **more)
    # One write to a file opened with O_APPEND, so that lines of concurrent processes do not mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(descriptor)


def measurements(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the measurements in a file."""
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            yield json.loads(line)
