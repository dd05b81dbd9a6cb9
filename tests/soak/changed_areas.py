"""`python -m tests.soak.changed_areas` prints the folders whose slow tests CI must run, one path per line.

`make soak` runs all slow tests and all tests in the browser, and docs/scorecard.json contains the commit at which they
last ran. CI repeats only those that failed or whose code has changed since then: tests/store has the tests of
agentobs/store, and tests/dashboards and tests/browser those of dashboards. Another folder without code of the same
name, and the files directly in tests, depend on all code. Shared files affect every folder: pyproject.toml, the
committed fixtures, and files in tests that are not tests, except for those of `make soak` itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tests.soak.finished_steps import last_steps
from tests.soak.scorecard import LAST_STEPS

ROOT = Path(__file__).parents[2]
SLOW_STEP = "slow tests"
BROWSER_STEP = "browser tests"
BROWSER = "tests/browser"
SOAK = PurePosixPath("tests/soak")
"""The files of `make soak`: other tests use them only to record figures."""
PACKAGES = ("agentobs", "replay", "exporters", "dashboards")
SHARED = ("pyproject.toml", "constraints.txt", "Makefile")
DOCUMENTS = {"README.md": "tests/cli", "docs/diagnose.md": "tests/wire"}
"""The documents whose examples are checked by slow tests, with the folder of these tests."""
_MARKED = re.compile(r"\bmark\.(slow|crash)\b")


def areas(root: Path = ROOT) -> list[str]:
    """Return the folders and files below `root` with slow tests; the tests in the browser are one of them."""
    found = {
        each.relative_to(root).parts[1]
        for each in (root / "tests").rglob("test_*.py")
        if _MARKED.search(each.read_text("utf-8"))
    }
    return sorted({f"tests/{name}" for name in found} | {BROWSER})


def affects(changed: str, area: str, root: Path = ROOT) -> bool:
    """Return whether a change of the file `changed` requires the slow tests of `area`; both are relative to `root`."""
    path, name = PurePosixPath(changed), PurePosixPath(area).name
    if changed == area or PurePosixPath(area) in path.parents:
        return True
    if changed in DOCUMENTS:
        return area == DOCUMENTS[changed]
    if changed in SHARED or path.parts[0] == "fixtures":
        return True
    if path.parts[0] == "tests":
        return not path.name.startswith("test_") and SOAK not in path.parents
    if path.parts[0] not in PACKAGES:
        return False
    if name == "browser":
        return path.parts[0] == "dashboards"
    if path.parts[0] == "agentobs" and len(path.parts) == 2:
        return True
    if not (root / "agentobs" / name).is_dir() and name not in PACKAGES:
        return True
    return name in (path.parts[0], path.parts[1] if path.parts[0] == "agentobs" else "")


def changed_files(commit: str, root: Path = ROOT) -> list[str] | None:
    """Return the files that differ from a commit, relative to `root`; None if the commit is not known here."""
    command = ["git", "diff", "--name-only", "--no-renames", "-z", commit, "--"]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    return None if done.returncode else [each for each in done.stdout.decode().split("\0") if each]


def files_to_test(step: str, root: Path = ROOT, steps: Path = LAST_STEPS) -> list[str] | None:
    """Return the files that have changed since the last run of a step of `make soak`, and those whose tests failed in
    it; None if there was none, or if it is not known what it tested or what failed.
    """
    for each in last_steps(steps, [step]):
        if " " in each.commit or (each.failed and not each.failed_files):
            return None
        changed = changed_files(each.commit, root)
        return None if changed is None else [*changed, *each.failed_files]
    return None


def required(found: Iterable[str], root: Path = ROOT, steps: Path = LAST_STEPS) -> Iterator[str]:
    """Yield those areas whose slow tests have not passed since their code was changed."""
    changes = {step: files_to_test(step, root, steps) for step in (SLOW_STEP, BROWSER_STEP)}
    for area in found:
        files = changes[BROWSER_STEP if area == BROWSER else SLOW_STEP]
        if files is None or any(affects(each, area, root) for each in files):
            yield area


if __name__ == "__main__":
    sys.stdout.writelines(f"{each}\n" for each in required(areas()))
