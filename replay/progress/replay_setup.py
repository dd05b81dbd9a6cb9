"""The setup of a replay: the fixture, the options and the comparison, which do not change while the agent runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs.records.exchanges import Question
from agentobs.tracing.ambient import Ambient
from replay.comparison.normalizers import ActiveNormalizers
from replay.comparison.placeholders import Renaming
from replay.fixture.body_parts import value_of
from replay.fixture.format import Fixture, RecordedRequest
from replay.matching.lane import cleaned_body
from replay.progress.ambient_answers import recorded_ambient
from replay.scenario.replay_options import ReplayOptions


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """The fixture, the options, and how live values are compared with recorded ones."""

    fixture: Fixture
    options: ReplayOptions
    renaming: Renaming
    """Replaces secrets and values that differ in each run before two texts are compared."""
    ambient: Ambient
    """The clock, IDs and random numbers that the agent gets."""

    def parsed_bodies(self, recorded: RecordedRequest, question: Question) -> tuple[Any, Any]:
        """Return the bodies of a recorded and of a live request, parsed and normalized for comparison."""
        body = self.fixture.body(recorded.number)
        live = self.renaming.bytes_with_recorded_names(body, cleaned_body(question, self.renaming))
        return value_of(body), value_of(live)

    def move_clock(self, ask: RecordedRequest, at: int) -> None:
        """Move the clock of a lane to the time when a recorded request was sent (0) or its response ended (1)."""
        if ask.at_ms is not None:
            self.ambient.move(ask.lane, ask.at_ms[at])

    @property
    def normalized(self) -> dict[str, int]:
        """The number of values that each normalizer has hidden."""
        return dict(self.renaming.normalizers.applied) if self.renaming.normalizers else {}


def setup_of(fixture: Fixture, options: ReplayOptions) -> ReplaySetup:
    """Return the setup for a fixture, with its own normalizers and those of the options."""
    rules = [*fixture.header.get("normalizers", []), *options.normalizers]
    renaming = Renaming(options.redactors, ActiveNormalizers(rules) if rules else None)
    return ReplaySetup(fixture, options, renaming, recorded_ambient(fixture, options))
