"""Replays elsewhere: another directory, user, date, time zone, locale, hash seed and number of processors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marks import but_first
from tests.replay.elsewhere import replayed
from tests.replay.generated import Kind, drawn, serving
from tests.replay.proving import recorded

pytestmark = pytest.mark.xdist_group("elsewhere")
ROOT = Path(__file__).parents[2]
AGENTS: tuple[tuple[int, Kind], ...] = ((20, "loop"), (58, "async"), (35, "threads"))
NOBODY = 65534
"""A user that owns nothing."""

SHIFTED = """
import os, time
_ahead = int(os.environ["DAYS_AHEAD"]) * 86400
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _ahead
time.time_ns = lambda: _time_ns() + _ahead * 10**9
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.cpu_count = lambda: int(os.environ["PROCESSORS"])
"""
"""Puts the clock of a process ahead, and leaves it one processor; it says that it has another number of them."""

ELSEWHERE: list[dict[str, str]] = [
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C", "DAYS_AHEAD": "3650", "PROCESSORS": "1"},
    {"PYTHONHASHSEED": "4711", "TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "DAYS_AHEAD": "-400",
     "PROCESSORS": "64", "PYTHONUTF8": "0"},
]  # fmt: skip


@pytest.fixture(scope="module")
def fixtures() -> Iterator[Path]:
    """Fixtures of one agent of our loop and of plain ones, where any user may read them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        scripts = [drawn(seed, kind) for seed, kind in AGENTS]
        with serving() as server:
            for one in recorded(folder / "made", scripts, server):
                name = f"{one.script.kind}-{one.script.seed}"
                shutil.copytree(one.fixture.path.parent, folder / "fixtures" / name)
        shutil.rmtree(folder / "made")
        yield folder / "fixtures"


@pytest.mark.parametrize(
    "environment", but_first(ELSEWHERE, pytest.mark.soak), ids=["ahead", "behind"]
)
def test_replays_elsewhere_are_identical(fixtures: Path, environment: dict[str, str]) -> None:
    """Values, events, every byte asked and answered, and the trajectory: as here."""
    here = json.loads(json.dumps(replayed(fixtures)))
    with tempfile.TemporaryDirectory() as name:
        there = Path(name)
        there.chmod(0o755)
        (there / "sitecustomize.py").write_text(SHIFTED)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.replay.elsewhere", str(fixtures)],
            cwd=there,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{there}{os.pathsep}{ROOT}",
                "HOME": str(there),
                "USER": "somebody-else",
                "LOGNAME": "somebody-else",
                "AS_USER": str(NOBODY),
                **environment,
            },
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr.decode()
    assert json.loads(ended.stdout) == here
