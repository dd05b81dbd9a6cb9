"""Failures of third-party agents become tests: red with the bug, green after a right fix, red after a wrong fix."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.failing_agents.case import Edit
from tests.failing_agents.cases.all import CASES
from tests.failing_agents.proof import prove, run_pytest, with_assertion, write_sources

QUICK = sorted(name for name, case in CASES.items() if case.is_quick)
REPLAYS = 6
"""The number of replays per agent; `python -m tests.failing_agents --replays 100` runs more."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", QUICK)
def test_a_failure_becomes_a_test(name: str, tmp_path: Path) -> None:
    """The short form of the proof finds no defect, and freezes a turn that a person would choose."""
    proof = prove(CASES[name], tmp_path / name, is_complete=False)
    assert proof.failures == {}
    assert int(proof.turn) in CASES[name].turns


@pytest.mark.parametrize("name", sorted(CASES))
def test_each_change_applies_to_its_agent(name: str, tmp_path: Path) -> None:
    """Each agent has a right and a wrong fix, and each change results in valid Python files."""
    case = CASES[name]
    changes = [*case.fixes, *case.wrong, *filter(None, [case.tampered])]
    assert len(case.fixes) >= 1
    assert len(case.wrong) >= 1
    for number, change in enumerate(changes):
        write_sources(case, tmp_path / str(number), [change])
        for file in (tmp_path / str(number)).rglob("*.py"):
            compile(file.read_text(), file, "exec")


def test_an_edit_of_an_ambiguous_text_is_an_error(tmp_path: Path) -> None:
    """If the old text of an edit occurs more than once, the edit raises an error."""
    (tmp_path / "bot.py").write_text("a = 1\nb = 1\n")
    with pytest.raises(ValueError, match="found it 2 times"):
        Edit("bot.py", "= 1", "= 2").apply(tmp_path)


def test_an_assertion_is_appended_to_test_fixed() -> None:
    """The assertion becomes the last line of `test_fixed`."""
    source = "def test_fixed(replay):\n    x = 1\n\n\ndef test_other():\n    pass\n"
    expected = "def test_fixed(replay):\n    x = 1\n    assert x\n\n\ndef test_other():\n    pass\n"
    assert with_assertion(source, "assert x") == expected


@pytest.mark.slow
def test_verdicts_contain_the_outcomes_of_pytest(tmp_path: Path) -> None:
    """Verdicts contain the outcome and the message of each test, without the source of the test."""
    (tmp_path / "test_bot.py").write_text(
        "def test_reaches_the_failure():\n    pass\n\n\n"
        "def test_fixed():\n    names = []  # only in the source\n    assert len(names) == 2, 'KeyError in lookup'\n"
    )
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    report = tmp_path / "report.xml"
    found = run_pytest(Path(sys.executable), [str(tmp_path)], tmp_path, environ, report)
    assert found.mismatches(test_reaches_the_failure="passed", test_fixed="failed") == ""
    assert found.mismatches(test_fixed="passed").startswith(
        "fixed failed (AssertionError: KeyError"
    )
    assert found.mismatches(test_same_path="passed") == "same_path missing"
    assert "KeyError in lookup" in found.messages["test_fixed"]
    assert "only in the source" not in found.messages["test_fixed"]


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_complete_proof_of_each_agent(name: str, tmp_path: Path) -> None:
    """The complete proof finds no defect and no flaky test, and freezes a turn that a person would choose."""
    proof = prove(CASES[name], tmp_path / name, replays=REPLAYS)
    assert proof.failures == {}
    assert proof.flaky == []
    assert int(proof.turn) in CASES[name].turns
