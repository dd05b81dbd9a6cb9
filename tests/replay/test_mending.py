"""A frozen test of the mend: with tools that change something outside, it can become green."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentobs
from replay import Fixture, Replayer, load
from replay.fixture.fixture_steps import steps_of
from replay.freeze.conversion import freeze
from tests.replay.agents import recorded
from tests.replay.test_torture_world import Counted, Shop, calls, made


def refunds(tmp_path: Path) -> tuple[Fixture, str]:
    """A session that failed after a call of a function that changes something, and the test of its mend."""

    @agentobs.record_tool(mutating=True)
    def pay(item: str) -> str:
        agentobs.fail("no-refund")
        raise ValueError("41,90")

    def run(url: str) -> None:
        Shop(url, price=Counted().tool, pay=pay).run()

    session = recorded(tmp_path, run, calls("price", "pay", item="mug"))
    written = freeze(session, tmp_path / "shop", {})
    return load(written.fixture), written.test.read_text()


def test_a_trajectory_tells_the_turns_of_recorded_functions(tmp_path: Path) -> None:
    """As the fixture's own steps do: the answers that make the calls say it, the functions cannot."""
    fixture, _ = made(tmp_path, calls("price", "pay", item="mug"), **tools())
    with Replayer(fixture) as replayed:
        replayed.run(Shop(**tools()).run)
    told = replayed.trajectory.splitlines()
    at = told.index("tools")
    assert [line.split()[:3] for line in told[at + 1 : at + 3]] == [
        ["turn", "1", "price"],
        ["turn", "1", "pay"],
    ]
    assert told[: at + 3] == steps_of(fixture)[: at + 3]


def tools() -> dict[str, Any]:
    """Two functions."""
    return {"price": Counted().tool, "pay": Counted("paid", name="pay").tool}


def test_the_frozen_test_names_functions(tmp_path: Path) -> None:
    """So the mended function runs in it, and the step differs."""
    fixture, code = refunds(tmp_path)
    assert 'step = replay.until_change(turn=1, tools=["price", "pay"])' in code
    assert (
        "    # By name, because a tool that changes something outside runs only if it is named"
        in code
    )
    compile(code, "test_shop.py", "exec")
    pay = Counted("paid", name="pay", mutating=True)
    with Replayer(fixture) as replayed:
        shop = Shop(price=Counted().tool, pay=pay.tool)
        step = replayed.until(shop.run, turn=1, tools=["price", "pay"])
    assert pay.runs == ["mug"]
    assert step.differs
    assert "answered from the recording" not in step.describe()


@pytest.mark.parametrize("tools", ["live", {"*": "execute"}], ids=str)
def test_a_step_says_what_did_not_run(tmp_path: Path, tools: str) -> None:
    """Where all are to run, one that changes something does not, and the step says so and what to do."""
    fixture, _ = refunds(tmp_path)
    pay = Counted("paid", name="pay", mutating=True)
    with Replayer(fixture) as replayed:
        shop = Shop(price=Counted().tool, pay=pay.tool)
        step = replayed.until(shop.run, turn=1, tools=tools)
    assert (pay.runs, step.differs) == ([], False)
    held = "pay was answered from the recording: it changes something; name it in tools= to run it"
    assert step.describe().splitlines()[-1] == f"    {held}"
    assert step.describe().count("answered from the recording") == 1
