"""A pytest plugin that counts test cases as measurements, and runs a share of the long tests.

A test that checks many cases has a weight. The plugin writes one line for each figure at the end of the run, with the
number of failed cases; see `tests.soak.figures`. `AGENTOBS_SOAK_SCALE` is the share of the tests to run, from 0 to 1.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.recording.fork_matrix import ENDS, HELD, MIDDLES
from tests.soak import figures

SCALE = "AGENTOBS_SOAK_SCALE"
DURATIONS = "AGENTOBS_SOAK_DURATIONS"
"""The variable with the path of a file for the durations of tests, one line of JSON for each run."""

CASES: dict[str, tuple[str, int]] = {
    "tests/soak/test_kills.py::test_ten_thousand_kills": ("kills", 50),
    "tests/soak/test_kills.py::test_forty_eight_kills_of_streaming_clients": ("kills", 12),
    "tests/soak/test_kills.py::test_two_hundred_kills_of_ingests_and_prunes": ("kills", 50),
    "tests/soak/test_power_loss.py::test_twenty_thousand_disk_images": ("power_loss", 500),
    "tests/recording/test_faults.py": ("disk_faults", 1),
    "tests/recording/test_forks.py::test_no_combination": (
        "forks",
        len(MIDDLES) * len(ENDS) * len(HELD) // 4,
    ),
    "tests/test_canary.py": ("canaries", 1),
    "tests/store/test_lock_down.py::test_a_worker_refuses_each_attack": ("sql_attacks", 1),
    "tests/store/test_lock_down.py::test_a_connection_refuses": ("sql_attacks", 1),
    "tests/store/test_sql_worker.py::test_a_bomb_is_stopped": ("sql_overruns", 1),
    "tests/replay/test_generated_agents.py::test_a_thousand_seeds": ("determinism", 250),
    "tests/recording/test_concurrency_models.py": ("concurrency", 1),
}
"""The figure and the number of cases of each test, by the start of its ID."""

_failed: Counter[str] = Counter()
_cases: Counter[str] = Counter()
_seconds: defaultdict[str, float] = defaultdict(float)
_chosen: dict[str, Any] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a share of the tests: at least one case of each test function."""
    scale = float(os.environ.get(SCALE, "1"))
    by_function: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    kept: set[pytest.Item] = set()
    for each in by_function.values():
        count = max(1, round(len(each) * scale)) if scale < 1 else len(each)
        for item in each:
            item.user_properties.append(("chosen", (count, len(each))))
        kept |= set(each[:: max(len(each) // count, 1)][:count])
    items[:] = [item for item in items if item in kept]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test case."""
    function = report.nodeid.partition("[")[0]
    _seconds[function] += report.duration
    _chosen.update((function, value) for name, value in report.user_properties if name == "chosen")
    if report.when != "call" and not (report.failed and report.when == "setup"):
        return
    for start, (figure, weight) in CASES.items():
        if report.nodeid.startswith(start) and not report.skipped:
            # A test ends at its first wrong case, so how many cases it has checked is unknown.
            _cases[figure] += 1 if report.failed else weight
            _failed[figure] += report.failed


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the counts; under xdist, only the main process has all reports."""
    if hasattr(session.config, "workerinput"):
        return
    for figure, count in _cases.items():
        failed = _failed[figure]
        note = f"{failed} tests failed" if failed else ""
        figures.report(figure, failed, count, note, counted=True)
    if path := os.environ.get(DURATIONS):
        rows = []
        for name, seconds in _seconds.items():
            chosen, count = _chosen.get(name, (1, 1))
            rows.append({"test": name, "seconds": seconds, "chosen": chosen, "all": count})
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows) + "\n")
