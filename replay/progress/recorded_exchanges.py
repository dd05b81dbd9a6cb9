"""The recorded exchanges of a replay: requests, tool calls and other questions, each used or not used yet."""

from __future__ import annotations

from agentobs.records.exchanges import is_inside_answer
from replay.divergence.divergence_facts import Progress
from replay.matching.lane import Lane
from replay.matching.tool_calls import Calls
from replay.matching.world_answers import WorldAnswers
from replay.progress.replay_setup import ReplaySetup
from replay.scenario.faults import Faults


class RecordedExchanges:
    """The exchanges of a fixture by kind, and the faults that replace some of their answers."""

    def __init__(self, setup: ReplaySetup) -> None:
        """Start with all exchanges unused."""
        self._setup = setup
        fixture, renaming = setup.fixture, setup.renaming
        self.lanes: dict[str, Lane] = {}
        """The model requests by lane."""
        for name in fixture.lanes:
            if not is_inside_answer(name):
                self.lane(name)
        self.calls = Calls(fixture, renaming)
        self.answers = WorldAnswers(
            fixture.world, lambda name: self.lane(name).used_count, renaming
        )
        self.faults = Faults(setup.options.faults)

    def lane(self, name: str) -> Lane:
        """Return a lane by its name; a lane that was not recorded is empty."""
        if name not in self.lanes:
            setup = self._setup
            self.lanes[name] = Lane(setup.fixture, name, setup.renaming, setup.options.match)
        return self.lanes[name]

    @property
    def main(self) -> Lane:
        """The lane of the main agent."""
        return self.lane("main")

    @property
    def has_unused_requests(self) -> bool:
        """Whether any lane still has a request that was not made."""
        return any(lane.unused for lane in self.lanes.values())

    @property
    def progress(self) -> Progress:
        """The number of recorded requests, tool calls and other questions that were used."""
        return Progress(
            requests_matched=sum(lane.used_count for lane in self.lanes.values()),
            requests=sum(len(lane.requests) for lane in self.lanes.values()),
            tools_matched=self.calls.matched,
            tools=self.calls.total,
            answers_matched=self.answers.total - len(self.answers.unused),
            answers=self.answers.total,
        )
