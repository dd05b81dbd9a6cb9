"""Frozen tests that check a fix if tools have side effects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentobs
from replay import Fixture, Replayer, load
from replay.fixture.fixture_steps import steps_of
from replay.freeze.conversion import freeze
from tests.replay.agents import recorded
from tests.replay.test_tool_policies import Counted, Shop, calls, recorded_shop


def refunds(tmp_path: Path) -> tuple[Fixture, str]:
    """Return the fixture of a session that failed after a call with side effects, and the frozen test of its fix."""

    @agentobs.record_tool(mutating=True)
    def pay(item: str) -> str:
        agentobs.fail("no-refund")
        raise ValueError("41,90")

    def run(url: str) -> None:
        Shop(url, price=Counted().tool, pay=pay).run()

    session = recorded(tmp_path, run, calls("price", "pay", item="mug"))
    written = freeze(session, tmp_path / "shop", {})
    return load(written.fixture), written.test.read_text()


def test_a_trajectory_contains_the_turns_of_recorded_functions(tmp_path: Path) -> None:
    """In a replay's trajectory, the calls of recorded functions have the same turns as in the fixture."""
    fixture, _ = recorded_shop(tmp_path, calls("price", "pay", item="mug"), **tools())
    with Replayer(fixture) as replayed:
        replayed.run(Shop(**tools()).run)
    lines = replayed.trajectory.splitlines()
    at = lines.index("tools")
    assert [line.split()[:3] for line in lines[at + 1 : at + 3]] == [
        ["turn", "1", "price"],
        ["turn", "1", "pay"],
    ]
    assert lines[: at + 3] == steps_of(fixture)[: at + 3]


def tools() -> dict[str, Any]:
    """Return two recorded functions."""
    return {"price": Counted().tool, "pay": Counted("paid", name="pay").tool}


def test_the_frozen_test_names_tools_with_side_effects(tmp_path: Path) -> None:
    """The frozen test names tools with side effects, so that a fixed tool runs and the step differs."""
    fixture, code = refunds(tmp_path)
    assert 'step = replay.until_change(turn=1, tools=["price", "pay"])' in code
    assert "    # Tools with side effects run only if they are named here." in code
    compile(code, "test_shop.py", "exec")
    pay = Counted("paid", name="pay", mutating=True)
    with Replayer(fixture) as replayed:
        shop = Shop(price=Counted().tool, pay=pay.tool)
        step = replayed.until(shop.run, turn=1, tools=["price", "pay"])
    assert pay.runs == ["mug"]
    assert step.differs
    assert "answered from the recording" not in step.describe()


@pytest.mark.parametrize("tools", ["live", {"*": "execute"}], ids=str)
def test_a_step_names_tools_that_did_not_run(tmp_path: Path, tools: str) -> None:
    """If a tool with side effects is not named and does not run, the step explains how to run it."""
    fixture, _ = refunds(tmp_path)
    pay = Counted("paid", name="pay", mutating=True)
    with Replayer(fixture) as replayed:
        shop = Shop(price=Counted().tool, pay=pay.tool)
        step = replayed.until(shop.run, turn=1, tools=tools)
    assert (pay.runs, step.differs) == ([], False)
    note = "pay was answered from the recording because it has side effects; add it to tools= to run it"
    assert step.describe().splitlines()[-1] == f"    {note}"
    assert step.describe().count("answered from the recording") == 1
