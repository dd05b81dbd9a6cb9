"""The state of a replay: one object that answering, judging and reporting share."""

from __future__ import annotations

import threading

from agentobs.records.exchanges import ModelExchange, Question, ToolExchange, WorldExchange
from agentobs.records.facts import Permission
from agentobs.sink import Record
from replay.divergence.divergence_facts import Suspicion
from replay.fixture.format import Fixture, RecordedRequest
from replay.matching.lane import Lane, Mismatch
from replay.progress.agent_run import AgentRun
from replay.progress.findings import Findings
from replay.progress.observations import Observations
from replay.progress.recorded_exchanges import RecordedExchanges
from replay.progress.recorded_path import RecordedPath
from replay.progress.replay_setup import setup_of
from replay.progress.request_progress import RequestProgress
from replay.scenario.replay_options import ReplayOptions


class ReplayState:
    """The setup, the progress and the findings of a replay."""

    def __init__(self, fixture: Fixture, options: ReplayOptions) -> None:
        """Start at the beginning of `fixture`.

        Raises:
            UsageError: the options do not fit the fixture.
        """
        self.setup = setup_of(fixture, options)
        self.exchanges = RecordedExchanges(self.setup)
        self.path = RecordedPath(self.setup, self.exchanges)
        self.requests = RequestProgress()
        self.agent = AgentRun()
        self.observations = Observations()
        self.findings = Findings()
        self.lock = threading.RLock()
        """Held while a live request is matched, and while a divergence is recorded in another thread."""

    def match(self, lane: Lane, question: Question) -> RecordedRequest | Mismatch:
        """Return the recorded request that a live request of a lane matches, and mark it as used; or the mismatch."""
        found = lane.match(question, self.requests.previous_number(question.origin))
        if isinstance(found, Mismatch):
            found = self.path.tolerate(lane, question, found)
        self.agent.note_activity()
        if isinstance(found, RecordedRequest):
            self.requests.note_match(found, question.origin)
        while lane.guesses:
            guess = lane.guesses.pop()
            self.findings.suspicions.append(Suspicion(lane.name, guess.chosen, guess.text))
        return found

    def collect(self, record: Record) -> None:
        """Receive a record that the agent emitted, and mark its recorded exchange as finished."""
        number = None
        if isinstance(record, ModelExchange):
            number = self.requests.note_emitted(record.question)
            if number is not None:
                self.setup.move_clock(self.setup.fixture.requests[number - 1], 1)
        elif isinstance(record, ToolExchange):
            self.exchanges.calls.note_end(record)
        elif isinstance(record, Permission):
            self.exchanges.calls.note_permission(record)
        elif isinstance(record, WorldExchange):
            self.exchanges.answers.note_abort(record)
        self.observations.add(record, number)
        self.agent.note_activity()

    def check_later_call(self, name: str, *, is_mutating: bool, is_function: bool = False) -> None:
        """Check that a call after the end of the recorded path may run; see `RecordedPath.check_later_call`.

        Raises:
            ReplayStopped: no response made the call.
            NotNamedError: a scripted response made the call, and its tool is mutating and not named.
        """
        error = self.path.check_later_call(name, is_mutating=is_mutating, is_function=is_function)
        if error is not None:
            raise self.findings.reject(error)
