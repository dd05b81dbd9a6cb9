"""Trajectories as snapshots: events, tools, costs and final texts are identical in every replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.cli.demo import refund_agent
from agentobs.determinism.values import error_to_json
from agentobs.records.exchanges import ToolAnswer
from replay import Fixture, Replayer, load
from replay.fixture.fixture_steps import records_of
from replay.fixture.trajectory import trajectory as trajectory_of
from replay.pytest_plugin.snapshot import snapshot_text
from tests.replay.agents import Agent, weather
from tests.store.recordings import T0, tool

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("snapshots"))


def replayed(fixture: Fixture) -> Replayer:
    replayed = Replayer(fixture)
    with replayed:
        if fixture.name == "weather-agent":
            replayed.run(Agent().answer, "How is it?")
        else:
            replayed.run(refund_agent.answer, **fixture.header["arguments"])
    return replayed


def test_an_exception_of_a_tool_is_one_line() -> None:
    """A trajectory contains the class and the message of an exception, not its recorded form."""
    call = tool(1, "toolu_1", "look", at=T0)
    lines = []
    for error in (TimeoutError("no answer"), LookupError()):
        answer = ToolAnswer(error_to_json(error), True, "failed")
        lines += trajectory_of([replace(call, answer=answer)]).splitlines()
    assert [line.strip() for line in lines if "look" in line] == [
        "turn None  look failed: TimeoutError: no answer",
        "turn None  look failed: LookupError",
    ]


def test_the_trajectory_of_the_agent_loop(trajectory: SnapshotAssertion) -> None:
    """Each line of a trajectory is one step: a request, text, tool call, tool, event, the outcome, or the final
    text.
    """
    assert replayed(load(ROOT / "fixtures" / "refund-loop")) == trajectory


def test_costs_use_the_prices_of_the_recorded_day(fixture: Fixture) -> None:
    """A trajectory contains the costs at the prices of the day of the recording; without a day, it contains no
    costs.
    """
    fixture.header["recorded_on"] = "2026-11-22"
    lines = snapshot_text(replayed(fixture).records, "2026-11-22").splitlines()
    at = lines.index("money at the prices of 2026-11-22")
    assert [line.split("$")[0] for line in lines[at + 1 : at + 5]] == [
        *(f"  answer {number}  claude-sonnet-5  " for number in (1, 2, 3)),
        "  total  ",
    ]
    each, total = (float(lines[at + n].split("$")[1]) for n in (1, 4))
    assert total == pytest.approx(3 * each)
    assert lines[at + 5 :] == ["text", "  Oslo is wet."]
    assert "money" not in snapshot_text(replayed(fixture).records, None)


def test_the_trajectory_of_a_fixture_and_of_a_replay_are_equal(fixture: Fixture) -> None:
    """The trajectories of a fixture and of its replay are equal, except for the end, which only a replay has."""
    day = fixture.header["recorded_on"]
    recorded = snapshot_text(records_of(fixture), day).splitlines()
    replayed_lines = snapshot_text(replayed(fixture).records, day).splitlines()
    assert [line for line in replayed_lines if not line.startswith("end ")] == recorded


@pytest.mark.slow
def test_a_snapshot_is_compared_by_line(
    pytester: pytest.Pytester, fixture: Fixture, warm_process: None
) -> None:
    """The pytest fixture `trajectory` writes a text file that is compared line by line."""
    folder = pytester.path / "weather"
    folder.mkdir()
    (folder / "recording.jsonl").write_bytes(fixture.path.read_bytes())
    pytester.makepyfile(
        "import pytest\nfrom tests.replay.agents import Agent\n"
        '@pytest.mark.replay("weather")\ndef test_it(replay, trajectory):\n'
        "    Agent().answer('How is it?')\n    assert replay == trajectory\n"
    )
    options = ("-p", "no:cacheprovider", "-p", "no:xdist")
    pytester.runpytest_inprocess(*options, "--snapshot-update").assert_outcomes(passed=1)
    [snapshot_file] = (pytester.path / "__snapshots__").rglob("*.steps")
    assert snapshot_file.read_text().endswith("text\n  Oslo is wet.\n")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)
    snapshot_file.write_text(snapshot_file.read_text().replace("Oslo is wet.", "Oslo is dry."))
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- *Oslo is dry.*", "*+ *Oslo is wet.*"])
