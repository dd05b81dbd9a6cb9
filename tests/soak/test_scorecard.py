"""The scorecard: measurements of a run become a page, and nothing is filled in that was not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.soak.__main__ import steps
from tests.soak.figures import FIGURES, VARIABLE, line_of, measurements, report
from tests.soak.finished_steps import FinishedStep, last_steps
from tests.soak.scorecard import LAST_STEPS, PAGE, page


def step(
    *lines: dict[str, Any], commit: str = "c0ffee", day: str = "2026-11-26", failed: str = ""
) -> FinishedStep:
    return FinishedStep("a step", commit, 1, day, "2 cores", 1.0, 1.0, failed, lines)


def test_measurements_become_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a figure are added or compared, missed targets have a reason, and other figures are not measured."""
    path = tmp_path / "lines"
    report("kills", 0, 5)
    assert not path.exists()
    monkeypatch.setenv(VARIABLE, str(path))
    report("kills", 0, 50)
    report("kills", 1, 50, "one record")
    report("kills", 9, 9, counted=True)
    report("exit_delay", 240.4, 3)
    report("exit_delay", 12, 3)
    report("disk_faults", 0, 40, counted=True)
    report("of_a_colleague", 3, 7, unit="files", target=5, command="make it")
    earlier = step(line_of("kills", 0, 200), commit="beef", day="2026-11-24")
    text = page([earlier, step(*measurements(path), failed="make it")])
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert len(rows) == len(FIGURES) + 3
    kills, faults, exits = (
        f"| {f.text}" for f in FIGURES if f.name in ("kills", "disk_faults", "exit_delay")
    )
    assert (
        " | 1 records | <= 0 records | **no** | 300 kills | 2026-11-24 to 2026-11-26 | beef, c0ffee | "
        in rows[kills]
    )
    assert " | 0 cases | <= 0 cases | yes | 40 cases | 2026-11-26 | c0ffee | " in rows[faults]
    assert " | 240 ms | <= 250 ms | yes | 6 exits | " in rows[exits]
    assert (
        rows["| of a colleague"]
        == "| of a colleague | 3 files | <= 5 files | yes | 7 cases | 2026-11-26 | c0ffee | `make it` |"
    )
    assert text.count("| not measured |") == len(FIGURES) - 3
    assert f"- {FIGURES[0].text}: one record" in text
    assert "- a step, at commit c0ffee: `make it`" in text
    assert "Machine: 2 cores." in text


def test_figures_that_are_missing_are_listed() -> None:
    """The figures without a measurement are listed."""
    text = page([step(line_of("kills", 0, 50))])
    absent = text.partition("## Not measured yet")[2]
    assert [line for line in absent.splitlines() if line] == [f"- {f.text}" for f in FIGURES[1:]]


def test_the_page_shows_the_last_measurements() -> None:
    """docs/scorecard.md is the page of docs/scorecard.json, and nothing was changed by hand."""
    known = last_steps(LAST_STEPS, [each.name for each in steps(1)])
    assert PAGE.read_text("utf-8") == page(known)
    assert all(each.scale == 1 for each in known)
