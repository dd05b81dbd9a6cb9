"""The committed fixtures replay with the current code."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.cli.demo import refund_agent
from replay import Replayer, load
from replay.fixture.format import FORMAT

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_the_demo_session_takes_the_same_path(snapshot: SnapshotAssertion) -> None:
    """In the demo session, the agent loop sends the recorded requests, including the requests after tool calls and
    retries.
    """
    fixture = load(FIXTURES / "refund-loop")
    assert fixture.header["agentobs_fixture"] == FORMAT
    with Replayer(fixture) as replayed:
        replayed.run(refund_agent.answer, **fixture.header["arguments"])
    assert replayed.progress.tools_matched == 3
    assert replayed.trajectory == snapshot(name="refund-loop")


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_until_finds_no_difference_at_any_turn(turn: int) -> None:
    """At every turn, the step of the unchanged agent equals the recorded step."""
    fixture = load(FIXTURES / "refund-loop")
    with Replayer(fixture) as replayed:
        step = replayed.until(
            refund_agent.answer, **fixture.header["arguments"], turn=turn, tools="live"
        )
    assert not step.differs, step.describe()
