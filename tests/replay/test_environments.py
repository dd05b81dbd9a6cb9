"""Replays in another directory, as another user, with another date, time zone, locale, hash seed and number of
processors.
"""

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

from tests.marks import mark_all_but_first
from tests.replay.generated_proofs import record_scripts
from tests.replay.generated_scripts import Kind, model_server, script_of
from tests.replay.replay_process import replayed

pytestmark = pytest.mark.xdist_group("replay environments")
ROOT = Path(__file__).parents[2]
AGENTS: tuple[tuple[int, Kind], ...] = ((20, "loop"), (58, "async"), (35, "threads"))
OTHER_USER = 65534
"""A user that owns no files."""

SHIFTED = """
import os, time
_ahead = int(os.environ["DAYS_AHEAD"]) * 86400
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _ahead
time.time_ns = lambda: _time_ns() + _ahead * 10**9
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.cpu_count = lambda: int(os.environ["PROCESSORS"])
"""
"""A `sitecustomize` module that shifts the clock, uses one processor, and reports a different number of processors."""

ENVIRONMENTS: list[dict[str, str]] = [
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C", "DAYS_AHEAD": "3650", "PROCESSORS": "1"},
    {"PYTHONHASHSEED": "4711", "TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "DAYS_AHEAD": "-400",
     "PROCESSORS": "64", "PYTHONUTF8": "0"},
]  # fmt: skip


@pytest.fixture(scope="module")
def fixtures() -> Iterator[Path]:
    """Fixtures of agents of the agent loop and of plain agents, in a folder that any user can read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        scripts = [script_of(seed, kind) for seed, kind in AGENTS]
        with model_server() as server:
            for recorded in record_scripts(folder / "made", scripts, server):
                name = f"{recorded.script.kind}-{recorded.script.seed}"
                shutil.copytree(recorded.fixture.path.parent, folder / "fixtures" / name)
        shutil.rmtree(folder / "made")
        shutil.copytree(ROOT / "fixtures" / "refund-loop", folder / "fixtures" / "refund-loop")
        yield folder / "fixtures"


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    mark_all_but_first(ENVIRONMENTS, pytest.mark.soak),
    ids=["clock-ahead", "clock-behind"],
)
def test_replays_are_identical_in_any_environment(
    fixtures: Path, environment: dict[str, str]
) -> None:
    """A replay in any environment has the same results, events, request and response bytes, trajectory and snapshot."""
    expected = json.loads(json.dumps(replayed(fixtures)))
    assert all("money at the prices of" in found[-1] for found in expected.values())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "sitecustomize.py").write_text(SHIFTED)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.replay.replay_process", str(fixtures)],
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
                "HOME": str(folder),
                "USER": "somebody-else",
                "LOGNAME": "somebody-else",
                "AS_USER": str(OTHER_USER),
                **environment,
            },
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr.decode()
    assert json.loads(ended.stdout) == expected
