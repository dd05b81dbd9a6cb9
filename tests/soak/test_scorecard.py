"""The scorecard: measurements of a run become a page, and nothing is filled in that was not measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.figures import FIGURES, VARIABLE, line_of, measurements, report
from tests.soak.scorecard import PAGE, measured, page


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
    text = page(
        measured(list(measurements(path))), ["2026-11-25", "2026-11-26"], "c0ffee", ["make it"]
    )
    assert "at commit c0ffee, 2026-11-25 to 2026-11-26: " in text
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| ")}
    assert len(rows) == len(FIGURES) + 3
    kills, faults, exits = (
        f"| {f.text}" for f in FIGURES if f.name in ("kills", "disk_faults", "exit_delay")
    )
    assert " | 1 records | <= 0 records | **no** | 100 kills | " in rows[kills]
    assert " | 0 cases | <= 0 cases | yes | 40 cases | " in rows[faults]
    assert " | 240 ms | <= 250 ms | yes | 6 exits | " in rows[exits]
    assert (
        rows["| of a colleague"]
        == "| of a colleague | 3 files | <= 5 files | yes | 7 cases | `make it` |"
    )
    assert text.count("| not measured |") == len(FIGURES) - 3
    assert f"- {FIGURES[0].text}: one record" in text
    assert "- `make it`" in text


def test_a_page_without_measurements(tmp_path: Path) -> None:
    """If nothing was measured, the page states this once, and does not repeat the list of all figures."""
    text = page([], [], "c0ffee")
    assert "have not been measured yet" in text
    assert text.count("\n## ") == 0
    assert PAGE.read_text("utf-8") == text or "at commit" in PAGE.read_text("utf-8")


def test_figures_that_are_missing_are_listed() -> None:
    """If something was measured, the figures without a measurement are listed."""
    text = page(measured([line_of("kills", 0, 50)]), ["2026-11-26"], "c0ffee")
    absent = text.partition("## Not measured in this run")[2]
    assert [line for line in absent.splitlines() if line] == [f"- {f.text}" for f in FIGURES[1:]]
    assert "at commit c0ffee, 2026-11-26: " in text
