"""Trajectories as snapshots: events, tools, money and last words, the same wherever and whenever they are replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.cli.demo import refund_agent
from replay import Fixture, Replayer, load
from replay.fixture.fixture_steps import records_of
from replay.pytest_plugin.snapshot import TrajectoryExtension, told
from tests.replay.agents import Agent, weather

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


def test_the_trajectory_of_our_loop(trajectory: SnapshotAssertion) -> None:
    """One line a step: requests, what was said and called, tools, events, how it ended, and the last words."""
    assert replayed(load(ROOT / "fixtures" / "refund-loop")) == trajectory


def test_money_is_that_of_the_recorded_day(fixture: Fixture) -> None:
    """Each answer has its price of the day of the recording, and so has the sum; a fixture without a day has none."""
    fixture.header["recorded_on"] = "2026-11-22"
    lines = told(replayed(fixture).records, "2026-11-22").splitlines()
    at = lines.index("money at the prices of 2026-11-22")
    assert [line.split("$")[0] for line in lines[at + 1 : at + 5]] == [
        *(f"  answer {number}  claude-sonnet-5  " for number in (1, 2, 3)),
        "  total  ",
    ]
    each, total = (float(lines[at + n].split("$")[1]) for n in (1, 4))
    assert total == pytest.approx(3 * each)
    assert lines[at + 5 :] == ["text", "  Oslo is wet."]
    assert "money" not in told(replayed(fixture).records, None)


def test_a_fixture_has_a_trajectory_without_a_replay(fixture: Fixture) -> None:
    """What was recorded and what is replayed are told in the same lines, but for what only a run tells."""
    day = fixture.header["recorded_on"]
    recorded = told(records_of(fixture), day).splitlines()
    again = told(replayed(fixture).records, day).splitlines()
    assert [line for line in again if not line.startswith("end ")] == recorded


def test_a_snapshot_is_kept_and_differs_by_line(
    pytester: pytest.Pytester, fixture: Fixture
) -> None:
    """The fixture `trajectory` writes a text file that is compared line by line."""
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
    [kept] = (pytester.path / "__snapshots__").rglob("*.steps")
    assert kept.read_text().endswith("text\n  Oslo is wet.\n")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)
    kept.write_text(kept.read_text().replace("Oslo is wet.", "Oslo is dry."))
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- *Oslo is dry.*", "*+ *Oslo is wet.*"])


def test_the_trajectory_is_the_same_elsewhere(tmp_path: Path) -> None:
    """Another directory, user, home, time zone, locale and hash seed: not a byte differs."""
    code = (
        "from agentobs.cli.demo import refund_agent\nfrom replay import Replayer, load\n"
        "from replay.pytest_plugin.snapshot import TrajectoryExtension\n"
        f"fixture = load({str(ROOT / 'fixtures' / 'refund-loop')!r})\n"
        "fixture.header['recorded_on'] = '2026-11-22'\n"
        "with Replayer(fixture) as replayed: replayed.run(refund_agent.answer, **fixture.header['arguments'])\n"
        "print(TrajectoryExtension().serialize(replayed), end='')\n"
    )
    other = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "USER": "nobody", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", **other},
        capture_output=True,
        check=True,
    )
    here = load(ROOT / "fixtures" / "refund-loop")
    here.header["recorded_on"] = "2026-11-22"
    assert ran.stdout.decode() == TrajectoryExtension().serialize(replayed(here))
