"""The recorded path: how far the agent must follow the recording, and in which ways it may differ from it."""

from __future__ import annotations

from collections.abc import Sequence

from agentobs.errors import UsageError
from agentobs.records.exchanges import Question
from replay.divergence.divergence import NotNamedError, ReplayStopped
from replay.fixture.format import RecordedRequest, RecordedTool
from replay.fixture.original_answers import check_sendable
from replay.matching.lane import Lane, Mismatch
from replay.progress.acceptance import Acceptance
from replay.progress.recorded_exchanges import RecordedExchanges
from replay.progress.replay_setup import ReplaySetup
from replay.scenario.departure import Departure, drift_of, is_refused
from replay.scenario.script import Scripted
from replay.scenario.tool_policies import ToolPolicy, policy_of


class RecordedPath:
    """The part of the recording that the agent must follow, and the permitted differences from it."""

    def __init__(self, setup: ReplaySetup, exchanges: RecordedExchanges) -> None:
        """Follow the whole recording, or up to the turn of a fork."""
        self._setup, self._exchanges = setup, exchanges
        fixture, options = setup.fixture, setup.options
        self.tools: ToolPolicy = options.tools
        """Which tools run: according to the options, unless `stop_after` or `allow_departure` changes it."""
        self.last_turn: int | None = None
        """The last turn of the main lane that is answered from the recording; None if all turns are answered from it.
        """
        self.first_live_turn: int | None = None
        """The turn of the main lane from which `tools` applies; None means from the start."""
        self.departure: Departure | None = None
        """The point at which the agent leaves the recorded path; None if it must not leave it."""
        self.later_requests: list[tuple[str, bytes]] = []
        """Path and body of each request that was sent after the end of the recorded path."""
        self.script: Sequence[Scripted] = ()
        """The responses to these requests; the replay ends after the last response."""
        first = options.accept_from
        self.acceptance = None if first is None else Acceptance(fixture, setup.renaming, first)
        """Accepts live requests in place of recorded ones; None if no request is accepted."""
        if options.fork is not None:
            self.stop_after(options.fork.turn, "live")
            check_sendable(fixture, options.fork.turn)

    def stop_after(self, turn: int, tools: ToolPolicy) -> None:
        """End the recorded path with the response of a turn, in which the tools of a policy run.

        Raises:
            UsageError: the recording has no such turn.
        """
        fixture = self._setup.fixture
        turns = [ask.turn for ask in fixture.requests if ask.lane == "main" and ask.turn]
        if fixture.until_turn is not None:
            turns = [each for each in turns if each <= fixture.until_turn]
        if turn not in turns:
            raise UsageError(
                f"the recording has no turn {turn}",
                where=str(fixture.path),
                todo=f"It has turns 1 to {max(turns, default=0)}",
            )
        self.last_turn, self.first_live_turn, self.tools = turn, turn, tools

    def allow_departure(self, failing_turn: int, tools: ToolPolicy) -> None:
        """Allow the agent to leave the recorded path, and let the tools of a policy run from a turn on.

        Args:
            failing_turn: see `Departure.failing_turn`.
            tools: which tools run.
        """
        self.departure, self.tools = Departure(failing_turn), tools
        self.first_live_turn = failing_turn

    def end_here(self) -> None:
        """End the recorded path at the last answered turn, unless its end is already set."""
        self.last_turn = self.last_turn or max(self._exchanges.main.turns, 1)

    def depart(self, expected: RecordedRequest | None = None) -> bool:
        """Record that the agent leaves the recorded path here, if it may; return whether it has left the path.

        Args:
            expected: the recorded request that was due.
        """
        departure, main = self.departure, self._exchanges.main
        if departure is None or departure.has_happened:
            return departure is not None
        if not (main.turns or not main.unused or (expected and is_refused(expected))):
            return False
        departure.has_happened, departure.turn, departure.expected = True, main.turns, expected
        self.last_turn = max(main.turns, 1)
        return True

    def tolerate(
        self, lane: Lane, question: Question, mismatch: Mismatch
    ) -> RecordedRequest | Mismatch:
        """Return the recorded request if the differing live request may replace it; otherwise the mismatch."""
        due = mismatch.expected
        if mismatch.elsewhere is not None or due is None:
            return mismatch
        if self.acceptance is not None and self.acceptance.accept_request(due, question):
            return lane.use(due)
        return lane.use(due) if self._has_only_drifted(lane, question, due) else mismatch

    def _has_only_drifted(self, lane: Lane, question: Question, due: RecordedRequest) -> bool:
        """Return whether the agent does the same as recorded, although its prompt or tool results differ.

        The first request of a session may differ in any way, and later requests in the same keys. Tool results may
        differ before the failing turn.
        """
        departure = self.departure
        if departure is None or departure.has_happened or is_refused(due):
            return False
        if due.path != question.path:
            return False
        drift = drift_of(*self._setup.parsed_bodies(due, question))
        if drift is None:
            return False
        has_started = any(each.used_count for each in self._exchanges.lanes.values())
        if not has_started and len(lane.due()) == 1:
            departure.keys = drift.keys
        changed = drift.results - departure.results
        is_early = self._exchanges.main.turns < departure.failing_turn
        if not {*drift.keys} <= {*departure.keys} or (changed and not is_early):
            return False
        departure.results |= changed
        departure.errors |= drift.errors
        return True

    def is_cut_off(self, lane: Lane) -> bool:
        """Return whether the session was frozen up to a turn, and `lane` is its main lane without unused requests."""
        return (
            self._setup.fixture.until_turn is not None and lane.name == "main" and not lane.unused
        )

    def has_ended(self, lane: Lane) -> bool:
        """Return whether the recorded path has an end, and a lane is past it."""
        if self.last_turn is None or self._exchanges.main.turns < self.last_turn:
            return False
        continues = self._setup.options.fork is not None or self.script
        return lane.name == "main" or bool(continues and not lane.unused)

    @property
    def is_live(self) -> bool:
        """Whether a fork has passed the end of the recorded path, so that everything runs live."""
        return self._setup.options.fork is not None and self.has_ended(self._exchanges.main)

    def is_before_live_turns(self, recorded: RecordedTool) -> bool:
        """Return whether a recorded call was made before the turn from which tools run."""
        first = self.first_live_turn
        return first is not None and self._exchanges.calls.turn_of(recorded) < first

    def is_after_last_turn(self, recorded: RecordedTool) -> bool:
        """Return whether a recorded call was made after the end of the recorded path."""
        last = self.last_turn
        return last is not None and self._exchanges.calls.turn_of(recorded) > last

    def check_later_call(
        self, name: str, *, is_mutating: bool, is_function: bool = False
    ) -> NotNamedError | None:
        """Check whether a call after the end of the recorded path may run.

        The recording has no result for the call. So if the tool is mutating, the policy must name it.

        Returns:
            The error if a scripted response made the call and the tool is not named; None if it may run.

        Raises:
            ReplayStopped: no response made the call.
        """
        if not is_mutating or self._setup.options.fork is not None:
            return None
        if policy_of(self.tools, name, is_mutating=True, is_function=is_function) != "replay":
            return None
        if len(self.later_requests) > len(self.script):
            raise ReplayStopped(f"replayed until turn {self.last_turn}")
        return NotNamedError(
            f"{name!r} has side effects, and was called after the recorded path",
            where=str(self._setup.fixture.path),
            todo=f"To run it, add it to tools=, as in tools=[{name!r}]",
        )

    def check_call_after_departure(
        self, name: str, *, is_mutating: bool, is_function: bool = False
    ) -> None:
        """Check that a call which was not recorded may run after the agent has left the recorded path.

        Raises:
            ReplayStopped: the policy does not let its tool run.
        """
        policy = policy_of(self.tools, name, is_mutating=is_mutating, is_function=is_function)
        if policy != "replay":
            return
        if self.departure is not None:
            self.departure.is_stopped = True
        raise ReplayStopped(
            f"the call of {name} was not recorded, and no tool is configured to answer it"
        )
