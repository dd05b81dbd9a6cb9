"""Commands whose packages are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentobs.recording.journal.home import open_home
from tests.marks import mark_all_but_first
from tests.store.recordings import record, session_id, start

MISSING = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"
BROKEN = "raise ImportError('libfoo.so.1: cannot open shared object file')"


@pytest.mark.parametrize(
    ("package", "arguments", "part", "extra"),
    [
        ("plotly", ["dashboard"], "the dashboard", "dashboards"),
        ("plotly", ["report", session_id(1), "-o", "report.html"], "a report", "dashboards"),
        ("textual", ["tui"], "tui", "tui"),
        ("botocore", ["record", "--sign-aws", "--", "true"], "--sign-aws", "aws"),
    ],
)
@pytest.mark.parametrize(
    ("source", "problem"),
    mark_all_but_first(
        [
            (MISSING, "the package {} is not installed"),
            (BROKEN, "a package cannot be imported: libfoo.so.1: cannot open shared object file"),
        ],
        pytest.mark.slow,
    ),
)
def test_a_package_that_cannot_be_imported_is_one_error(
    package: str,
    arguments: list[str],
    part: str,
    extra: str,
    source: str,
    problem: str,
    tmp_path: Path,
) -> None:
    """The error states which part needs the package, and the command that installs it. There is no traceback."""
    record(open_home(tmp_path / "home"), [start(1, "refund-loop")])
    (tmp_path / f"{package}.py").write_text(source, encoding="utf-8")
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    ended = subprocess.run(
        [sys.executable, "-m", "agentobs", "--home", str(tmp_path / "home"), *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    expected = f"error: {part}: {problem.format(package)}. Install what {part} needs: pip install "
    assert ended.stderr.startswith(expected)
    assert f"{extra}]" in ended.stderr
    assert ended.stderr.count("\n") == 1
