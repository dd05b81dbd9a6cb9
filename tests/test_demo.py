"""`agentobs demo` runs all steps in one command, without a key and without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("demo")
"""The demo runs once for all tests."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the output of the demo and its folder; its environment has no key."""
    folder = tmp_path_factory.mktemp("demo")
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("ANTHROPIC", "AGENTOBS"))
    }
    ended = subprocess.run(
        [sys.executable, "-m", "agentobs", "demo", "-o", "story"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout, folder / "story"


@pytest.mark.slow
def test_the_steps_run_in_order(demo: tuple[str, Path]) -> None:
    """The demo records, lists, prices and freezes a failure, fixes it, and explains a divergence, in this order."""
    out, _ = demo
    steps = [
        "a local server with prepared responses",
        "I could not refund order A-17",
        "refund-loop  My parcel for order A-17 never came. Please refun\u2026  failed  ValueError in issue_refund at ",
        "declared by the agent: refund-not-issued",
        "overloaded_error",
        "claude-sonnet-5      3     29     233       4,470        2,446  $0.0104",
        "write 5m",
        "wrote  fixtures/refund-loop/test_refund_loop.py",
        "replays: yes, 2 of 2",
        "1 failed, 1 passed",
        "2 passed",
        "MATCHED  refund-loop  4 of 4 requests, 3 of 3 tool calls",
        "DIVERGED  refund-loop  main, request 3 of 4, turn 2",
        "$.messages[2].content[0].content | $.total",
        'why        tool_result of lookup_order(order_id="A-17"): it ran live',
    ]
    at = -1
    for step in steps:
        assert out.find(step, at + 1) > at, step
        at = out.find(step, at + 1)


@pytest.mark.slow
def test_the_readme_shows_the_output_of_the_demo(demo: tuple[str, Path]) -> None:
    """Every output in the README that is marked as output of the demo equals it, except for IDs."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"<!-- demo -->\n```\n(.*?)```", readme, flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert _without_ids(block) in _without_ids(demo[0])


def _without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{32}", "<id>", text)


@pytest.mark.slow
def test_the_folder_of_the_demo_is_complete(demo: tuple[str, Path]) -> None:
    """The folder of the demo contains the agent, the fixture, its test, and the store."""
    _, folder = demo
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        "refund_agent.py",
        "fixtures/refund-loop/recording.jsonl",
        "fixtures/refund-loop/test_refund_loop.py",
        ".agentobs/agentobs.duckdb",
    } <= left


def test_a_folder_that_is_not_empty_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo never writes into a folder that contains other files."""
    from agentobs.cli import main

    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["demo", "-o", str(tmp_path)])
    assert ended.value.code == 1
    assert "the folder is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("options", [[], ["--home", "mine"]])
def test_the_demo_records_into_the_chosen_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """With `--home`, the recordings are written to that home, else to the folder of the demo."""
    from agentobs.cli import demo as module
    from agentobs.cli import main

    homes = []

    def run(folder: Path, home: Path) -> None:
        homes.append(home)
        raise SystemExit(0)

    monkeypatch.setattr(module, "_run_agent", run)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*options, "demo", "-o", "story"])
    assert homes == [tmp_path / ("mine" if options else "story/.agentobs")]


def test_without_pytest_the_demo_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pytest, which the base install does not include, one error names the extra, and nothing is written."""
    from agentobs.cli import main

    hide_pytest(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "-o", str(tmp_path / "story")])
    assert ended.value.code == 1
    assert "pytest is not installed here. Install the extra `pytest`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def hide_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `find_spec` find no pytest, as in an environment without it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pytest" else find(name)
    )
