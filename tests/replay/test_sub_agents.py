"""Replay of agents that start others: in any schedule each lane takes its recorded path."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import agentobs
from agentobs.records.exchanges import ModelExchange, Recording
from replay import Fixture, Replay
from tests.replay.agents import frozen, last_session
from tests.replay.crowd import Inventor, by_lane, dig, inventing


def recorded(home: Path, width: int) -> tuple[Recording, dict[str, list[str]]]:
    """Record a crowd, live; return the recording and the events of each lane."""
    from agentobs.recording.session import start_recorder

    agentobs.stop_recorder()
    with inventing(Inventor(width, seed=width)) as url:
        start_recorder(str(home))
        try:
            events = asyncio.run(dig(url))
        finally:
            assert agentobs.stop_recorder()
    return last_session(home), by_lane(events)


def replayed(fixture: Fixture, seed: int) -> dict[str, list[str]]:
    with Replay(fixture) as replay:
        events = replay.run(dig, None, random.Random(seed))
    assert replay.progress.requests_matched == replay.progress.requests
    return by_lane(events)


@pytest.mark.parametrize("width", range(1, 9))
def test_agents_beside_each_other_replay_in_any_schedule(tmp_path: Path, width: int) -> None:
    """Agents that ask the same at once and get different answers, nested, with hooks and one in the background."""
    recording, live = recorded(tmp_path / "home", width)
    firsts = [
        each.question.body
        for each in recording.exchanges
        if isinstance(each, ModelExchange) and each.place.lane.count("/") == 1
        if each.place.turn == 1 and each.place.lane != "main/b"
    ]
    assert len(firsts) == width
    assert len(set(firsts)) == 1
    fixture = frozen(tmp_path, recording, "crowd")
    for seed in range(13):
        assert replayed(fixture, seed) == live
