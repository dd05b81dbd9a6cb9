"""The last lines of a failed run name the failed tests and the reasons."""

from __future__ import annotations

import pytest

NAME = "test_" + "a_name_that_explains_the_guarantee_" * 3
FAILING = f"""
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("the setup failed")

def {NAME}():
    print("output " * 1_000)
    assert [1, 2] == [1, 3], "the third value is missing"

def test_errors(broken):
    pass

def test_passes():
    pass
"""


@pytest.mark.parametrize("ci", ["", "true"])
def test_the_last_lines_name_the_failed_tests_and_the_reasons(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    """Names and the first lines of reasons are complete, below all tracebacks and directly above the counts."""
    monkeypatch.delenv("BUILD_NUMBER", raising=False)
    monkeypatch.setenv("CI", ci) if ci else monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(test_some=FAILING)
    # Warnings of earlier tests could be raised during this run, and would be counted.
    without = [
        each for name in ("cacheprovider", "xdist", "warnings") for each in ("-p", f"no:{name}")
    ]
    options = ("-p", "tests.failure_lines", *without, "-q", "-ra", "--force-short-summary")
    ran = pytester.runpytest_inprocess(*options)
    *_, error, failure, counts = ran.outlines
    assert error == "ERROR test_some.py::test_errors - RuntimeError: the setup failed"
    assert failure == f"FAILED test_some.py::{NAME} - AssertionError: the third value is missing"
    assert counts.startswith("1 failed, 1 passed, 1 error in ")
