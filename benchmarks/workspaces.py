"""The time of a snapshot of a workspace, compared with `git status` on the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from agentobs.effects.workspaces import Snapshots, keep_state, open_shadow
from agentobs.recording.journal.home import open_home
from benchmarks.measure import Cost, Round, compare, cost_of
from benchmarks.report import Section, Verdict

ROUNDS = 15
SIZES = {10_000: 100.0, 100_000: 1000.0}
"""The numbers of files, and the maximum time of a snapshot of so many unchanged files in milliseconds."""
STATUS, UNCHANGED, CHANGED = "git status", "snapshot, unchanged", "snapshot, one changed file"


def sections() -> Iterator[Section]:
    """Measure snapshots of two sizes."""
    for files, target in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            yield _section(Path(folder), files, target)


def _section(folder: Path, files: int, target: float) -> Section:
    root = folder / "workspace"
    _fill(root, files)
    started = time.perf_counter()
    _git(root, "init", "-q")
    _git(root, "add", "-A")
    _git(root, "-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "all")
    committed = time.perf_counter() - started
    shadow = open_shadow(open_home(folder / "home"), root)
    snapshots = Snapshots(shadow)
    started = time.perf_counter()
    snapshots.take()
    first = time.perf_counter() - started
    changing = root / "d0" / "s0" / "f0.py"

    def change(number: int) -> Cost:
        changing.write_text(f"{number}\n" * 50)
        cost = cost_of(lambda: keep_state(shadow, "bench", number + 1, snapshots.take()))
        _git(root, "add", "-u")  # so that `git status` compares equal work
        snapshots.take()
        return cost

    rounds = compare(
        {
            STATUS: lambda _: cost_of(lambda: _git(root, "status", "--porcelain")),
            UNCHANGED: lambda _: cost_of(snapshots.take),
            CHANGED: change,
        },
        range(ROUNDS),
    )
    kept = sum(path.lstat().st_size for path in shadow.git_dir.rglob("*"))
    rows = [(name, f"{_wall(rounds, name):.0f}", _share(rounds, name)) for name in rounds[0]]
    rows.append(("first snapshot", f"{first * 1e3:.0f}", ""))
    rows.append(("`git add` and `git commit` of all files", f"{committed * 1e3:.0f}", ""))
    shutil.rmtree(root)
    return Section(
        f"Snapshots of a workspace with {files:,} files",
        f"{ROUNDS} rounds. Wall time in milliseconds, median. A snapshot of a changed file includes the second list of "
        f"differences and the reference that keeps it. The shadow repository has {kept / 1e6:.1f} MB at the end.",
        ("", "ms", f"x {STATUS}"),
        tuple(rows),
        (
            Verdict(
                f"snapshot of {files:,} unchanged files",
                target,
                _wall(rounds, UNCHANGED),
                "{:.0f} ms",
                "git has to look at each file.",
            ),
        ),
    )


def _fill(root: Path, files: int) -> None:
    for number in range(files):
        folder = root / f"d{number // 1000}" / f"s{number // 25 % 40}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}.py").write_text(f"x = {number}\n" * 40)


def _git(root: Path, *arguments: str) -> None:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *arguments], cwd=root, env=environment, check=True, capture_output=True)


def _wall(rounds: list[Round], name: str) -> float:
    return median(each[name].wall_ns for each in rounds) / 1e6


def _share(rounds: list[Round], name: str) -> str:
    return f"{median(each[name].wall_ns / each[STATUS].wall_ns for each in rounds):.2f}"
