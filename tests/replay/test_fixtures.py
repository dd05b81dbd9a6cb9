"""The committed fixtures replay with the code as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.cli.demo import refund_agent
from replay import Replayer, load
from replay.fixture.format import FORMAT

FIXTURES = Path(__file__).parents[2] / "fixtures"


VERSIONS = {"refund-loop": FORMAT, "old/1/refund-loop": 1, "old/2/refund-loop": 2}
"""The demo's session as it is frozen now, and as each older version of the format froze it."""


@pytest.mark.parametrize("folder", VERSIONS)
def test_the_demos_session_takes_the_same_path(folder: str, snapshot: SnapshotAssertion) -> None:
    """Our loop asks what it asked when this was frozen, tools and retries included, in every version."""
    fixture = load(FIXTURES / folder)
    assert fixture.header["agentobs_fixture"] == VERSIONS[folder]
    with Replayer(fixture) as replayed:
        replayed.run(refund_agent.answer, **fixture.header["arguments"])
    assert replayed.progress.tools_matched == 3
    assert replayed.trajectory == snapshot(name="refund-loop")


def test_every_older_version_is_kept() -> None:
    """There is a fixture of each version of the format before this one."""
    kept = {int(path.name) for path in (FIXTURES / "old").iterdir() if path.name != "stores"}
    assert kept == set(range(1, FORMAT))


@pytest.mark.parametrize("folder", VERSIONS)
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_until_any_turn_nothing_differs(folder: str, turn: int) -> None:
    """The agent is the one that was recorded: after each turn it does what it did."""
    fixture = load(FIXTURES / folder)
    with Replayer(fixture) as replayed:
        step = replayed.until(
            refund_agent.answer, **fixture.header["arguments"], turn=turn, tools="live"
        )
    assert not step.differs, step.describe()
