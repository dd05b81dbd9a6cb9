"""Every scenario of the loop replays with the same path and events, in any environment and at any time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from agentobs.records.canonical_json import digest
from tests.agent.replayed_scenarios import replay, shared_replay
from tests.agent.scenarios import FIXTURES, SCENARIOS

pytestmark = pytest.mark.xdist_group("scenarios")


def recorded_events(name: str) -> list[str]:
    return (FIXTURES / name / "events.txt").read_text(encoding="utf-8").splitlines()


def streams(events: list[str]) -> dict[str, list[str]]:
    """Return the events of each background agent, and all other events, in their order.

    Events of a background agent are yielded as they happen, so only their relative order is the same in each run. They
    precede the result of the agent.
    """
    background = {
        json.loads(each.partition(" ")[2])[1]
        for each in events
        if each.startswith("BackgroundResult ")
    }
    found: dict[str, list[str]] = {"": []}
    for each in events:
        kind, _, values = each.partition(" ")
        agent_id = json.loads(values)[0] if kind == "SubAgent" else ""
        stream = agent_id if agent_id in background else ""
        if stream:
            ended = [e for e in found[""] if e.startswith("BackgroundResult ")]
            assert not any(json.loads(e.partition(" ")[2])[1] == stream for e in ended)
        found.setdefault(stream, []).append(each)
    return found


def test_every_scenario_has_a_fixture() -> None:
    """Each scenario has a fixture, and each fixture has a scenario."""
    assert {path.name for path in FIXTURES.iterdir() if path.is_dir()} == set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_takes_the_same_path(name: str, snapshot: SnapshotAssertion) -> None:
    """If a scenario is replayed, without external input, the agent takes the same steps and emits the same events."""
    replayed = shared_replay(name)
    assert streams(replayed.lines) == streams(recorded_events(name))
    assert replayed.trajectory == snapshot


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seed", "zone"),
    [("1", "Asia/Tokyo"), ("4711", "America/Nome")],
)
def test_scenarios_replay_in_another_environment(seed: str, zone: str, tmp_path: Path) -> None:
    """All scenarios replay in another directory, as another user, in another time zone and year, and with other hash
    seeds.
    """
    root = Path(__file__).parents[2]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": seed,
        "TZ": zone,
        "HOME": str(tmp_path),
        "USER": "somebody-else",
        "LANG": "C",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.agent.scenario_replays"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert {name: streams(events) for name, events in json.loads(ended.stdout).items()} == {
        name: streams(recorded_events(name)) for name in SCENARIOS
    }


def test_a_run_stopped_before_its_request_was_sent(tmp_path: Path) -> None:
    """If a run was stopped before any request was recorded, the replay stops before it sends a request.

    The loop cannot distinguish an unsent request from a sent request without a response, but the replay can.
    """
    lines = (FIXTURES / "stopped-before-request" / "recording.jsonl").read_bytes().splitlines(True)
    body = b"".join(lines[:-1]).replace(b'"1:unsent:1"', b'"1:streaming:1"')
    end = {**json.loads(lines[-1]), "digest": digest(body)}
    (tmp_path / "recording.jsonl").write_bytes(body + json.dumps(end).encode() + b"\n")
    replayed = replay("stopped-before-request", tmp_path)
    assert replayed.lines == recorded_events("stopped-before-request")
