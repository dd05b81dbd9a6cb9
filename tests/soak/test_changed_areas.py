"""CI runs the slow tests of what has changed since they last passed, and all of them in any doubt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.__main__ import FAILED, failed_files
from tests.soak.changed_areas import (
    BROWSER,
    BROWSER_STEP,
    SLOW_STEP,
    affects,
    areas,
    required,
)
from tests.soak.finished_steps import COMMIT_DIGITS, FinishedStep, write_last_steps

MARKED = "import pytest\n\n@pytest.mark.{}\ndef test_it(): pass\n"
ALL = [BROWSER, "tests/cli", "tests/store", "tests/test_demo.py", "tests/wire"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose soak passed at its only commit."""
    for path, text in {
        "agentobs/store/ingest.py": "",
        "agentobs/cli/main.py": "",
        "agentobs/world.py": "",
        "dashboards/style.py": "",
        "CHANGELOG.md": "",
        "README.md": "",
        "fixtures/loop/fixture.json": "",
        "tests/store/recordings.py": "",
        "constraints.txt": "",
        "tests/conftest.py": "",
        "tests/cli/test_show.py": MARKED.format("slow"),
        "tests/soak/figures.py": "",
        "tests/store/test_kill.py": MARKED.format("crash"),
        "tests/wire/test_wire.py": MARKED.format("slow"),
        "tests/records/test_quick.py": "def test_it(): pass\n",
        "tests/test_demo.py": MARKED.format("slow"),
        "tests/test_quick.py": "def test_it(): pass\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()[:COMMIT_DIGITS]
    passed(tmp_path, commit)
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout


def passed(root: Path, commit: str, failed: str = "", files: tuple[str, ...] = ()) -> None:
    steps = [
        FinishedStep(name, commit, 1, "2026-11-26", "2 cores", 1.0, 1.0, failed, (), files)
        for name in (SLOW_STEP, BROWSER_STEP)
    ]
    write_last_steps(root / "steps.json", steps)


def ask(root: Path) -> list[str]:
    return list(required(areas(root), root, root / "steps.json"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("CHANGELOG.md", []),
        ("README.md", ["tests/cli"]),
        ("fixtures/loop/fixture.json", ALL),
        ("tests/store/recordings.py", ALL),
        ("tests/soak/figures.py", []),
        ("agentobs/store/ingest.py", ["tests/store", "tests/test_demo.py", "tests/wire"]),
        ("agentobs/world.py", ["tests/cli", "tests/store", "tests/test_demo.py", "tests/wire"]),
        ("dashboards/style.py", [BROWSER, "tests/test_demo.py", "tests/wire"]),
        ("tests/cli/test_show.py", ["tests/cli"]),
        ("tests/test_demo.py", ["tests/test_demo.py"]),
        ("tests/records/test_quick.py", []),
        ("tests/test_quick.py", []),
        ("tests/conftest.py", ALL),
        ("constraints.txt", ALL),
    ],
)
def test_a_change_requires_the_slow_tests_of_its_area(
    checkout: Path, changed: str, expected: list[str]
) -> None:
    """A change of code requires the slow tests of the same folder, and those that depend on all code."""
    assert ask(checkout) == []
    (checkout / changed).write_text((checkout / changed).read_text("utf-8") + "# changed\n")
    assert ask(checkout) == expected


def test_all_slow_tests_are_required_in_doubt(checkout: Path) -> None:
    """All are required if it is unknown which tests failed, or if their last run measured uncommitted changes or an
    unknown commit, or if there was none.
    """
    commit = git(checkout, "rev-parse", "HEAD").strip()[:COMMIT_DIGITS]
    passed(checkout, commit, failed="pytest -m slow")
    assert ask(checkout) == ALL
    passed(checkout, f"{commit} with changes c0ffee00")
    assert ask(checkout) == ALL
    passed(checkout, "c0ffeec0ffee")
    assert ask(checkout) == ALL
    (checkout / "steps.json").unlink()
    assert ask(checkout) == ALL


def test_failed_tests_are_required_again(checkout: Path) -> None:
    """If the files are known whose tests failed, their areas are required, and those of later changes."""
    commit = git(checkout, "rev-parse", "HEAD").strip()[:COMMIT_DIGITS]
    passed(checkout, commit, "pytest -m slow", ("tests/wire/test_wire.py", "tests/test_quick.py"))
    assert ask(checkout) == ["tests/wire"]
    (checkout / "agentobs/cli/main.py").write_text("changed = True\n")
    assert ask(checkout) == ["tests/cli", "tests/test_demo.py", "tests/wire"]


def test_the_files_of_failed_tests_are_read_from_the_cache_of_pytest(tmp_path: Path) -> None:
    """The files are those of the failures of the last run, of parametrized tests as well."""
    test = "import pytest\n@pytest.mark.parametrize('x', [1, 2])\ndef test_it(x): assert x == 1\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test_a.py").write_text(test)
    (tmp_path / "folder" / "test_b.py").write_text("def test_it(): pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-o",
        "cache_dir=cache",
        "--cache-clear",
    ]
    assert failed_files(tmp_path / "cache") == ()
    ended = subprocess.run(
        [*command, "--rootdir=."], cwd=tmp_path, capture_output=True, check=False
    )
    assert ended.returncode == FAILED
    assert failed_files(tmp_path / "cache") == ("folder/test_a.py",)


def test_a_deleted_file_is_a_change(checkout: Path) -> None:
    """A deleted or renamed file requires the slow tests of its area."""
    git(checkout, "mv", "agentobs/cli/main.py", "agentobs/store/main.py")
    assert "tests/cli" in ask(checkout)
    assert "tests/store" in ask(checkout)


def test_areas_of_this_project() -> None:
    """Code of the same name exists for most folders; the others, such as tests/wire, depend on all code."""
    assert affects("agentobs/store/ingest.py", "tests/store")
    assert affects("dashboards/app/server.py", "tests/dashboards")
    assert affects("replay/freeze/command.py", "tests/replay")
    assert not affects("replay/freeze/command.py", "tests/store")
    assert affects("replay/freeze/command.py", "tests/wire")
    assert not affects("docs/replay.md", "tests/wire")
