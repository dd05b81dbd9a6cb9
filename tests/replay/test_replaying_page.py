"""docs/replaying.md: its tests run as written, and it names the existing options and pytest fixtures."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from agentobs import pytest_plugin
from agentobs.cli.demo import refund_agent
from replay.freeze.conversion import freeze
from tests.replay.agents import Agent, answers, recorded

FIXTURES = Path(__file__).parents[2] / "fixtures"
PAGE = (Path(__file__).parents[2] / "docs" / "replaying.md").read_text()


@pytest.mark.slow
def test_the_tests_of_the_page_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, warm_process: None
) -> None:
    """Each test on the page runs under pytest as written."""
    session = recorded(pytester.path, lambda url: Agent(url).answer("How is it?"), answers())
    freeze(session, pytester.path / "fixtures" / "weather", {})
    (pytester.path / "fixtures" / "weather" / "test_weather.py").unlink()
    agent = (
        "from tests.replay.agents import Agent\ndef answer(prompt): return Agent().answer(prompt)\n"
    )
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    page, plain, clock, beyond = blocks
    pytester.makepyfile(weather=agent, test_page=page, test_plain=plain)
    pytester.syspathinsert()
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "--snapshot-update")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=5)
    exec(clock, {})
    # Another test may have imported `refund_agent` from a different directory.
    monkeypatch.delitem(sys.modules, "refund_agent", raising=False)
    shutil.copy(refund_agent.__file__, pytester.path)
    shutil.copytree(FIXTURES / "refund-loop", pytester.path / "fixtures" / "refund-loop")
    file = pytester.makepyfile(test_scripted=beyond)
    pytester.runpytest_inprocess(*options, file).assert_outcomes(passed=1)


def test_the_page_names_all_options_and_fixtures() -> None:
    """The page describes each option and each pytest fixture of the plugin."""
    source = Path(pytest_plugin.__file__).read_text()
    for option in re.findall(r'"(--replay-[a-z]+)"', source):
        assert f"{option}" in PAGE
    for name in re.findall(r"@pytest.fixture\ndef ([a-z]\w+)", source):
        assert f"`{name}`" in PAGE, name
