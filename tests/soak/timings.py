"""Figures that are times, and need a machine that does nothing else: `python -m tests.soak.timings`.

Each figure is measured in separate processes. The results are printed, and collected for docs/scorecard.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import agentobs
from agentobs.recording.journal.file_system import OS, Files
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.options import Options
from agentobs.recording.recorder import Recorder
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.exporters.test_delivery import AGENT, dead, hung, overloaded
from tests.recording.faulty_files import Faulty
from tests.soak.counted_cases import DURATIONS
from tests.soak.figures import report
from tests.store.recordings import conversation, everything, record

ROOT = Path(__file__).parents[2]
SESSIONS = 4_000
"""The number of sessions in the store that is rebuilt."""
BATCH = 100
"""The number of sessions that one segment contains."""
LAG_SECONDS = 25.0
SYNCS_SECONDS, SYNCS_SECONDS_MIN = 20.0, 2.0
"""How long syncs are observed, and at least at a small scale."""
TICK_SECONDS = 0.01
ROUNDS = 7


def exits(scale: float) -> None:
    """Measure the exit with unreachable collectors, and their memory."""
    rounds = max(1, round(ROUNDS * scale))
    slowest, growth, count = 0.0, 0, 0
    with dead() as nobody, hung() as silent, overloaded() as busy:
        for place in (
            f"{nobody} http/protobuf",
            f"{silent} http/protobuf",
            f"{busy} http/protobuf",
        ):
            took = []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    found = _child(AGENT, f"{folder}/home", place)
                took.append(found["took"] * 1000)
                growth = max(growth, found["growth"])
                count += 1
            slowest = max(slowest, median(took))
    report("exit_delay", slowest, count)
    report("export_memory", growth / 2**20, 2_500 * count)
    print(f"exit {slowest:.0f} ms, memory {growth / 2**20:.1f} MB")


def _child(code: str, *arguments: str) -> dict[str, Any]:
    """Run Python code in a child process; return the JSON object that it prints last."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=600
    )
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2_000:])
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def hung_disk(scale: float) -> None:
    """Measure the lag of an event loop, and `flush`, while the disk hangs."""
    found = _child(
        "from tests.soak.timings import measure_hung_disk; measure_hung_disk()",
        str(LAG_SECONDS * scale),
    )
    report("hung_disk_lag", found["lag_ms"], found["ticks"])
    report("flush_overrun", found["overrun_ms"], found["flushes"], found["note"])
    print(f"lag {found['lag_ms']:.2f} ms, flush overrun {found['overrun_ms']:.2f} ms")


def measure_hung_disk() -> None:
    """In a child process: record while each write hangs, and print the lag of the loop as JSON."""
    seconds = max(float(sys.argv[1]), 1.0)
    is_hanging = threading.Event()
    faulty = Faulty(
        lambda operation, number: "hang" if is_hanging.is_set() and operation == "write" else None
    )
    with tempfile.TemporaryDirectory() as folder:
        agentobs.start(folder, Options(files=faulty.files))
        with agentobs.session("hung"):
            with agentobs.span("first"):
                pass
            assert agentobs.flush()
            is_hanging.set()
            late = asyncio.run(_ticks(seconds))
            overruns, lies = [], 0
            for timeout in (0.05, 0.1, 0.2, 0.5):
                began = time.perf_counter()
                lies += agentobs.flush(timeout)
                overruns.append((time.perf_counter() - began - timeout) * 1000)
            is_hanging.clear()
            faulty.free.set()
        agentobs.stop_recorder()
    late.sort()
    at = min(math.ceil(len(late) * 0.999), len(late)) - 1
    note = f"{lies} calls returned True" if lies else ""
    # A flush that returns True although nothing was written counts as an endless one.
    overrun = max(overruns) if not lies else 1e9
    found = {
        "lag_ms": late[at],
        "ticks": len(late),
        "overrun_ms": overrun,
        "flushes": len(overruns),
        "note": note,
    }
    print(json.dumps(found))


async def _ticks(seconds: float) -> list[float]:
    """Record spans, and return how late each tick of the loop was, in milliseconds."""
    late: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        late.append((time.perf_counter() - due) * 1000)
        for _ in range(5):
            with agentobs.span("work"):
                pass
    return late


def span_calls(scale: float) -> None:
    """Measure the longest call that starts or ends a span."""
    rounds = max(1, round(ROUNDS * scale))
    code = "from tests.soak.timings import measure_spans; measure_spans()"
    longest = [_child(code)["longest_ms"] for _ in range(rounds)]
    report("span_call", median(longest), rounds)
    print(f"longest call of a span {median(longest):.2f} ms")


def measure_spans() -> None:
    """In a child process: record 10,000 spans, and print the longest call as JSON.

    The garbage collector first visits the objects of the imports, as in a process that has run for a while. Spans are
    not the reason for that collection, which takes 20 to 130 ms.
    """
    longest = 0
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        agentobs.start(folder)
        with agentobs.session("spans"):
            for _ in range(10_000):
                before = time.perf_counter_ns()
                span = agentobs.span("work")
                span.__enter__()
                between = time.perf_counter_ns()
                span.__exit__(None, None, None)
                longest = max(longest, between - before, time.perf_counter_ns() - between)
        agentobs.stop_recorder()
    print(json.dumps({"longest_ms": longest / 1e6}))


def loss_window(scale: float) -> None:
    """Measure how long a written record waits for its sync, by default."""
    waits: list[float] = []
    written: dict[int, float] = {}

    def write(descriptor: int, data: memoryview) -> int:
        count = OS.write(descriptor, data)
        written.setdefault(descriptor, time.monotonic())
        return count

    def sync(descriptor: int) -> None:
        first = written.pop(descriptor, None)
        OS.sync(descriptor)
        if first is not None:
            waits.append((time.monotonic() - first) * 1000)

    files = Files(**{**_functions(), "write": write, "sync": sync})
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(open_home(Path(folder)), Options(files=files, sync="interval"))
        ends = time.monotonic() + max(SYNCS_SECONDS * scale, SYNCS_SECONDS_MIN)
        number = 0
        while time.monotonic() < ends:
            number += 1
            for each in conversation(number, turns=1):
                recorder(each)
            time.sleep(0.01)
        recorder.close(30)
    report("loss_window", max(waits), len(waits))
    print(f"loss window {max(waits):.0f} ms, median {median(waits):.0f} ms")


def _functions() -> dict[str, Any]:
    return {name: getattr(OS, name) for name in Files.__dataclass_fields__}


def rebuild(scale: float) -> None:
    """Measure the rebuild of a store, and compare it with the deleted one."""
    with tempfile.TemporaryDirectory() as folder:
        home = open_home(Path(folder) / "home")
        sessions = max(BATCH, round(SESSIONS * scale))
        for first in range(0, sessions, BATCH):
            records = [
                each
                for number in range(first, first + BATCH)
                for each in conversation(number, turns=8)
            ]
            record(home, records)
        plain = sum(path.stat().st_size for path in home.segments.glob("*.facts"))
        ingest(home)
        before = _tables(home)
        home.database.unlink()
        began = time.monotonic()
        ingest(home)
        seconds = time.monotonic() - began
        after = _tables(home)
    different = [name for name in before if before[name] != after[name]]
    rows = sum(len(each) for each in before.values())
    report("rebuild", len(different), rows, f"tables: {', '.join(different)}" if different else "")
    report("rebuild_time", seconds / plain * 1e9, round(plain / 1e6))
    print(
        f"rebuild of {plain / 1e6:.0f} MB: {seconds:.1f} s, {seconds / plain * 1e9:.0f} s per GB, "
        f"{len(different)} tables differ"
    )


def _tables(home: Home) -> dict[str, list[Any]]:
    with connect(home, ingest=False) as connection:
        return {name: sorted(map(repr, rows)) for name, rows in everything(connection).items()}


MEASURES: dict[str, tuple[Callable[[float], None], float]] = {
    "exits": (exits, 1 / ROUNDS),
    "hung-disk": (hung_disk, 1 / LAG_SECONDS),
    "spans": (span_calls, 1 / ROUNDS),
    "loss-window": (loss_window, SYNCS_SECONDS_MIN / SYNCS_SECONDS),
    "rebuild": (rebuild, BATCH / SESSIONS),
}
"""The functions that measure, each with the smallest share of its work that it does at any scale."""


def main() -> None:
    """Measure the named figures, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.timings", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument(
        "--scale", type=float, default=float(os.environ.get("AGENTOBS_SOAK_SCALE", "1"))
    )
    options = parser.parse_args()
    rows = []
    for name in options.names or MEASURES:
        measure, least = MEASURES[name]
        started = time.monotonic()
        measure(options.scale)
        seconds = time.monotonic() - started
        rows.append(
            {"test": name, "seconds": seconds, "chosen": max(options.scale, least), "all": 1}
        )
    if path := os.environ.get(DURATIONS):
        Path(path).write_text(json.dumps(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
