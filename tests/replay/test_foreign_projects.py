"""Projects that do not use agentobs: its pytest plugin does not affect them."""

from __future__ import annotations

import pytest

PACKAGES = ("replay", "exporters", "dashboards")


def with_own_packages(pytester: pytest.Pytester) -> None:
    """Create packages in the root directory with the same names as packages of agentobs."""
    for name in PACKAGES:
        pytester.mkpydir(name)
        (pytester.path / name / "thing.py").write_text(f"NAME = '{name}'\n")


@pytest.mark.slow
def test_own_packages_of_the_same_names_are_imported(pytester: pytest.Pytester) -> None:
    """A project imports its own packages named `replay`, `exporters` and `dashboards`, with `pytest` and `python -m
    pytest`.
    """
    with_own_packages(pytester)
    pytester.makeini("[pytest]\npythonpath = .\n")
    lines = [f"import {name}.thing" for name in PACKAGES]
    names = ", ".join(f"{name}.thing.NAME" for name in PACKAGES)
    pytester.makepyfile(
        "\n".join([*lines, "def test_it():", f"    assert ({names}) == {PACKAGES}"])
    )
    for result in (pytester.runpytest_subprocess(), pytester.run("python", "-m", "pytest")):
        result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_hidden_replay_package_is_reported(pytester: pytest.Pytester) -> None:
    """If another package named `replay` hides the package of agentobs, a marked test fails with this reason and does
    not run live.
    """
    with_own_packages(pytester)
    pytester.makeini("[pytest]\npythonpath = .\n")
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.replay('fixtures/some')\ndef test_marked(): pass\n"
        "def test_other(): pass\n"
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*another package named `replay` hides the one of agentobs*"])


@pytest.mark.slow
def test_a_run_does_not_require_syrupy(pytester: pytest.Pytester) -> None:
    """Without syrupy, tests run, and a project may define its own snapshot option and fixture."""
    pytester.makeconftest(
        "import pytest\n"
        "def pytest_addoption(parser): parser.addoption('--snapshot-update', action='store_true')\n"
        "@pytest.fixture\ndef snapshot(): return 'mine'\n"
    )
    pytester.makepyfile("def test_it(snapshot): assert snapshot == 'mine'\n")
    result = pytester.runpytest_subprocess("-p", "no:syrupy", "--snapshot-update")
    result.assert_outcomes(passed=1)
