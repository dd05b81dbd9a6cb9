"""What starting costs: processes of the command line beside an interpreter that does nothing."""

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
from benchmarks.conversation import Size, answer, run
from benchmarks.measure import Cost, Round, compare
from benchmarks.provider import canned
from benchmarks.report import Section, Verdict

ROUNDS = 15
EMPTY, AGAIN = "python -c pass", "again"
TARGETS = {"agentobs --help": 150.0, "agentobs sql 'select 1'": 600.0, "agentobs cost": 600.0}
"""Milliseconds over an empty interpreter."""
HEAVY = ("anthropic", "plotly", "genai_prices", "opentelemetry")
"""What no question to the store needs, and what costs most to import."""
SIZE = Size(deltas=20, result_bytes=1000)


def sections() -> Iterator[Section]:
    """Measure everything about starting."""
    with tempfile.TemporaryDirectory() as home:
        _fill(home)
        commands = _commands(home)
        variants = {name: partial(start, command) for name, command in commands.items()}
        rounds = compare(variants, range(ROUNDS))
        loaded = {name: _loaded(commands[name]) for name in TARGETS}
    yield _section(rounds, loaded)


def _fill(home: str) -> None:
    """Record three short sessions and publish them."""
    asking = agentobs.record(canned([answer(turn, SIZE) for turn in range(1, 6)]), home=home)
    for name in ("one", "two", "three"):
        with agentobs.session(name):
            run(asking, 5, SIZE)
    agentobs.stop_recorder()
    subprocess.run([script(), "--home", home, "ingest"], check=True, stdout=subprocess.DEVNULL)


def _commands(home: str) -> dict[str, list[str]]:
    empty = [sys.executable, "-c", "pass"]
    return {
        EMPTY: empty,
        AGAIN: empty,
        "agentobs --help": [script(), "--help"],
        "agentobs sql 'select 1'": [script(), "--home", home, "sql", "select 1"],
        "agentobs cost": [script(), "--home", home, "cost"],
    }


def script() -> str:
    """Return the command as it is installed beside this interpreter."""
    return str(Path(sys.executable).with_name("agentobs"))


def start(command: list[str], _: int) -> Cost:
    """Run a process to its end, and return what it cost."""
    cpu, wall = _children_ns(), time.perf_counter_ns()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Cost(wall_ns=time.perf_counter_ns() - wall, process_ns=_children_ns() - cpu)


def _children_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def _loaded(command: list[str]) -> str:
    """Return which of the heavy packages a command has imported when it ends."""
    told = subprocess.run(
        [sys.executable, "-c", _TELL, *command[1:]], check=True, capture_output=True, text=True
    )
    return told.stderr.strip().splitlines()[-1]


_TELL = f"""
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
        "Starting",
        f"{ROUNDS} rounds of one process each, over a home of three published sessions. Milliseconds beyond what "
        f"`{EMPTY}` takes ({_least(rounds, EMPTY):.0f} ms): the least of all rounds, which decides, and the median.",
        ("", "wall, least", "wall, median", "CPU, median", "imports of " + ", ".join(HEAVY)),
        tuple(
            (f"`{name}`" if name != AGAIN else name, *_cells(rounds, name, loaded))
            for name in names
        ),
        tuple(_verdict(rounds, name, target) for name, target in TARGETS.items())
        + tuple(_imports(name, told) for name, told in loaded.items()),
    )


def _cells(rounds: list[Round], name: str, loaded: dict[str, str]) -> tuple[str, ...]:
    wall = median(each[name].wall_ns - each[EMPTY].wall_ns for each in rounds) / 1e6
    cpu = median(each[name].process_ns - each[EMPTY].process_ns for each in rounds) / 1e6
    least = _least(rounds, name) - _least(rounds, EMPTY)
    return (f"{least:.0f}", f"{wall:.0f}", f"{cpu:.0f}", loaded.get(name, ""))


def _least(rounds: list[Round], name: str) -> float:
    return min(each[name].wall_ns for each in rounds) / 1e6


def _verdict(rounds: list[Round], name: str, target: float) -> Verdict:
    over = _least(rounds, name) - _least(rounds, EMPTY)
    return Verdict(f"`{name}` over an empty interpreter", target, over, "{:.0f} ms", _SLOW)


def _imports(name: str, told: str) -> Verdict:
    count = 0 if told == "none" else len(told.split(", "))
    return Verdict(
        f"heavy packages that `{name}` imports", 0, count, "{:.0f}", f"It imports {told}."
    )


_SLOW = "What it imports takes longer here."
