"""Forks, threads, signals and every way to exit: no record is lost or duplicated, and no process hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from tests.marks import mark_all_but_first
from tests.recording.fork_matrix import ENDS, HELD, MIDDLES

ROOT = Path(__file__).parents[2]
CODES = {"by_error": 1, "by_terminate": -15, "by_kill": -9, "by_abort": -6}


def test_the_matrix_has_at_least_200_combinations() -> None:
    """The matrix has at least 200 combinations: each event during a session with each process end, inside and outside
    of a session.
    """
    assert len(MIDDLES) * len(ENDS) * len(HELD) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("group", mark_all_but_first(range(4), pytest.mark.crash))
def test_no_combination_loses_or_duplicates_records(group: int, tmp_path: Path) -> None:
    """In each combination, every emitted record is recorded once, by the process that emitted it, and the process ends
    normally and quickly.
    """
    command = [sys.executable, "-m", "tests.recording.fork_matrix", str(tmp_path), str(group)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(results) == len(MIDDLES) * len(ENDS) * len(HELD) / 4
    for result in results:
        check(result)


def check(result: dict[str, Any]) -> None:
    """Check the output line of one combination."""
    name = result["name"]
    assert result["status"] == CODES.get(name.split(", ")[1], 0), name
    assert result["seconds"] < 6, f"{name}: the end was held up"
    assert len(result["ids"]) >= 6, f"{name}: it broke off"
    home = existing_home(result["home"])
    found: Counter[str] = Counter()
    for segment_id in segment_ids(home):
        for line in read(facts_path(home, segment_id)):
            assert isinstance(line, Line), f"{name}: {line}"
            if line.kind == "tool_results":
                found[line.value()["tool_use_id"]] += 1
    missing = {each: found[each] for each in result["ids"] if found[each] != 1}
    assert not missing, f"{name}: {missing}"
