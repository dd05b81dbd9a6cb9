"""Concurrency models: processes, event loops, greenlets and subinterpreters record each call once, or refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from tests.marks import mark_all_but_first
from tests.recording.concurrency_models import CALLS, MODELS, WORKERS

ROOT = Path(__file__).parents[2]
UNUSUAL = ("uvloop", "gevent", "subinterpreter")
REFUSAL = "not recording: this interpreter cannot run background threads"


@pytest.mark.parametrize(
    "model",
    # No other test covers the first ones.
    mark_all_but_first(
        sorted(MODELS, key=lambda each: each not in UNUSUAL), pytest.mark.crash, kept=3
    ),
)
def test_each_call_is_recorded_once(model: str, tmp_path: Path) -> None:
    """Each call is in the journal exactly once. A subinterpreter refuses to record with one warning, and its process
    continues to record.
    """
    command = [
        sys.executable,
        "-m",
        "tests.recording.concurrency_models",
        str(tmp_path / "home"),
        model,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr
    ids = json.loads(ended.stdout.splitlines()[-1])
    assert len(ids) == CALLS * (
        2 if model == "subinterpreter" else WORKERS + 2 * (model not in UNUSUAL)
    )
    home = existing_home(tmp_path / "home")
    lines = [each for name in segment_ids(home) for each in read(facts_path(home, name))]
    assert all(isinstance(each, Line) for each in lines)
    found = Counter(
        each.value()["tool_use_id"]
        for each in lines
        if isinstance(each, Line) and each.kind == "tool_results"
    )
    assert found == Counter(ids)
    assert ended.stderr.count(REFUSAL) == (model == "subinterpreter")
    assert "Traceback" not in ended.stderr
