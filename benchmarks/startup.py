"""The start-up time of commands, compared with an interpreter that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import agentobs
from agentobs.recording.journal.home import open_home
from benchmarks.conversation import Size, response_chunks, run
from benchmarks.measure import Cost, Round, compare, ratio
from benchmarks.provider import canned_client
from benchmarks.report import Section, Verdict

ROUNDS = 15
EMPTY, REPEATED = "python -c pass", "floor, repeated"
DUCKDB = "python -c 'import duckdb'"
RATIOS = {"agentobs --version": 1.0, "agentobs sessions, empty home": 4.0, "agentobs sessions": 4.5}
"""The maximum CPU time, divided by that of `DUCKDB`, which every reader of a store needs."""
TARGETS = {"agentobs --help": 150.0, "agentobs sql 'select 1'": 600.0, "agentobs cost": 600.0}
"""The maximum time in addition to an empty interpreter, in milliseconds."""
HEAVY = ("anthropic", "plotly", "genai_prices", "opentelemetry")
"""The packages that take longest to import, and that no query of the store needs."""
SIZE = Size(deltas=20, result_bytes=1000)


def sections() -> Iterator[Section]:
    """Measure the start-up time of commands."""
    with tempfile.TemporaryDirectory() as home:
        _fill(home)
        empty_home = open_home(Path(home) / "empty")
        commands = _commands(home, str(empty_home.path))
        variants = {name: partial(start, command) for name, command in commands.items()}
        rounds = compare(variants, range(ROUNDS))
        loaded = {name: _loaded(commands[name]) for name in TARGETS}
    yield _section(rounds, loaded)


def _fill(home: str) -> None:
    """Record three short sessions and publish them."""
    client = agentobs.record(
        canned_client([response_chunks(turn, SIZE) for turn in range(1, 6)]), home=home
    )
    for name in ("one", "two", "three"):
        with agentobs.session(name):
            run(client, 5, SIZE)
    agentobs.stop_recorder()
    subprocess.run([script(), "--home", home, "ingest"], check=True, stdout=subprocess.DEVNULL)


def _commands(home: str, empty_home: str) -> dict[str, list[str]]:
    empty = [sys.executable, "-c", "pass"]
    return {
        EMPTY: empty,
        REPEATED: empty,
        DUCKDB: [sys.executable, "-c", "import duckdb"],
        "agentobs --version": [script(), "--version"],
        "agentobs sessions, empty home": [script(), "--home", empty_home, "sessions"],
        "agentobs sessions": [script(), "--home", home, "sessions"],
        "agentobs --help": [script(), "--help"],
        "agentobs sql 'select 1'": [script(), "--home", home, "sql", "select 1"],
        "agentobs cost": [script(), "--home", home, "cost"],
    }


def script() -> str:
    """Return the path of the `agentobs` command of this interpreter."""
    return str(Path(sys.executable).with_name("agentobs"))


def start(command: list[str], _: int) -> Cost:
    """Run a process until it ends, and return the cost."""
    cpu, wall = _children_ns(), time.perf_counter_ns()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Cost(wall_ns=time.perf_counter_ns() - wall, process_ns=_children_ns() - cpu)


def _children_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def _loaded(command: list[str]) -> str:
    """Return the heavy packages that a command has imported by its end, or `none`."""
    completed = subprocess.run(
        [sys.executable, "-c", _PRINT_IMPORTS, *command[1:]],
        check=True,
        capture_output=True,
        text=True,
    )
    return completed.stderr.strip().splitlines()[-1]


_PRINT_IMPORTS = f"""
import sys
from agentobs.cli import main
try:
    main(sys.argv[1:])
finally:
    print(", ".join(name for name in {HEAVY} if name in sys.modules) or "none", file=sys.stderr)
"""


def _section(rounds: list[Round], loaded: dict[str, str]) -> Section:
    names = list(rounds[0])
    return Section(
        "Start-up",
        f"{ROUNDS} rounds of one process each, with a home of three ingested sessions. Milliseconds in addition to "
        f"`{EMPTY}` ({_minimum(rounds, EMPTY):.0f} ms). The targets apply to the minimum of all rounds.",
        ("", "wall, minimum", "wall, median", "CPU, median", "imports of " + ", ".join(HEAVY)),
        tuple(
            (f"`{name}`" if name != REPEATED else name, *_cells(rounds, name, loaded))
            for name in names
        ),
        tuple(_verdict(rounds, name, target) for name, target in TARGETS.items())
        + tuple(_ratio_verdict(rounds, name, most) for name, most in RATIOS.items())
        + tuple(_imports_verdict(name, packages) for name, packages in loaded.items()),
    )


def _cells(rounds: list[Round], name: str, loaded: dict[str, str]) -> tuple[str, ...]:
    wall = median(each[name].wall_ns - each[EMPTY].wall_ns for each in rounds) / 1e6
    cpu = median(each[name].process_ns - each[EMPTY].process_ns for each in rounds) / 1e6
    minimum = _minimum(rounds, name) - _minimum(rounds, EMPTY)
    return (f"{minimum:.0f}", f"{wall:.0f}", f"{cpu:.0f}", loaded.get(name, ""))


def _minimum(rounds: list[Round], name: str) -> float:
    return min(each[name].wall_ns for each in rounds) / 1e6


def _verdict(rounds: list[Round], name: str, target: float) -> Verdict:
    added = _minimum(rounds, name) - _minimum(rounds, EMPTY)
    return Verdict(
        f"`{name}` in addition to an empty interpreter", target, added, "{:.0f} ms", _SLOW
    )


def _ratio_verdict(rounds: list[Round], name: str, most: float) -> Verdict:
    found = ratio(rounds, name, DUCKDB, "process_ns")
    label = f"`{name}`, CPU, divided by `{DUCKDB}`"
    return Verdict(label, most, found, "{:.2f}", _SLOW, ROUNDS)


def _imports_verdict(name: str, packages: str) -> Verdict:
    count = 0 if packages == "none" else len(packages.split(", "))
    return Verdict(
        f"heavy packages that `{name}` imports", 0, count, "{:.0f}", f"It imports {packages}."
    )


_SLOW = "Its imports take longer on this machine."
