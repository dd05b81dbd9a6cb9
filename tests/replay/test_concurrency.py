"""Sub-agents that send identical requests at the same time each get their own answers in a replay."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

import pytest

from replay import DivergenceError, Replayer
from tests.replay.concurrent_agents import AGENTS, Setting, in_objects, recorded_agent, with_map


def replayed(fixture, agent, heard, times, noise_s, **more) -> None:
    for _ in range(times):
        with Replayer(fixture) as replay:
            assert replay.run(agent, Setting(noise_s=noise_s), **more) == heard


@pytest.mark.parametrize("overlaps", [True, False], ids=["overlapping", "one at a time"])
@pytest.mark.parametrize("name", AGENTS)
def test_each_sub_agent_gets_its_own_answers(tmp_path: Path, name: str, overlaps: bool) -> None:
    fixture, heard = recorded_agent(tmp_path, AGENTS[name], overlaps=overlaps)
    replayed(fixture, AGENTS[name], heard, 3, 0.01)
