"""Replays of the scenarios of the loop. Tests that only read the result share one replay per process."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import Conversation, Event
from agentobs.sink import Record
from replay import Replayer, load
from tests.agent import scenarios
from tests.agent.scenario import ExternalInput
from tests.agent.scenarios import FIXTURES, SCENARIOS, in_order, play


@dataclass(frozen=True)
class ReplayedScenario:
    """The result of a replay without external input."""

    events: list[Event]
    """The events of the agent loop."""
    trajectory: str
    """The trajectory of the replay."""
    records: list[Record]
    """The records of the session, without the bodies of requests."""
    exchanges: list[Record]
    """The records that `Replayer.records` returns."""
    conversation: Conversation
    """The conversation that the loop kept."""

    @property
    def lines(self) -> list[str]:
        """The events as lines, in an order that does not depend on concurrency."""
        return in_order(self.events)


def replay(name: str, fixture: Path | None = None) -> ReplayedScenario:
    """Replay a scenario without external input.

    Args:
        name: the scenario.
        fixture: its recording; defaults to its own fixture.

    Raises:
        DivergenceError: the path differs from the recorded one.
    """
    scenario, events, external_input = SCENARIOS[name], list[Event](), ExternalInput()
    tools = scenario.tools if scenario.replayed_tools is None else scenario.replayed_tools

    async def run_again() -> None:
        async with AsyncAnthropic(open_telemetry=False) as client:
            agentobs.record(client)
            with agentobs.session(name):
                async for event in play(name, client, external_input, tools):
                    events.append(event)

    scenarios._is_available[0] = False
    replayer = Replayer(load(fixture or FIXTURES / name))
    records = collected(replayer)
    with replayer:
        replayer.run(run_again)
    assert external_input.conversation is not None
    return ReplayedScenario(
        events, replayer.trajectory, records, list(replayer.records), external_input.conversation
    )


@functools.cache
def shared_replay(name: str) -> ReplayedScenario:
    """Return the replay of a scenario, which tests must not change. Their group is `scenarios`."""
    return replay(name)


def collected(replayer: Replayer) -> list[Record]:
    """Return a list that receives all records of the session that a replay will make."""
    records, collect = list[Record](), replayer._state.collect

    def both(each: Record) -> None:
        records.append(each)
        collect(each)

    replayer._state.collect = both  # type: ignore[method-assign, assignment]
    return records
