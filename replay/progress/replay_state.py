"""The progress of a replay on the recorded path: one value that answering, judging and reporting share."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentobs import world
from agentobs.determinism.jobs import Job
from agentobs.errors import UsageError
from agentobs.records.exchanges import (
    ModelExchange,
    Question,
    Returned,
    SessionReturn,
    ToolExchange,
    WorldExchange,
    is_inside_answer,
)
from agentobs.records.facts import Permission, SessionEnd, settled
from agentobs.sink import Record
from replay.agent_code.ambient_reads import Reads
from replay.agent_code.call_sites import Site, call_site
from replay.comparison.normalizers import Normalizing
from replay.comparison.placeholders import Renaming
from replay.divergence.divergence import (
    Divergence,
    DivergenceError,
    NotNamedError,
    NotSendableError,
    ReplayStopped,
)
from replay.divergence.divergence_facts import Progress, Suspicion
from replay.fixture.body_parts import value_of
from replay.fixture.format import Ask, Fixture, RecordedTool
from replay.fixture.original_answers import check_sendable
from replay.matching.interaction_ends import last_of
from replay.matching.lane import Lane, Mismatch, asked_body
from replay.matching.tool_calls import Calls
from replay.matching.world_answers import Answers
from replay.progress.acceptance import Accepting
from replay.progress.ambient_answers import ambient_in
from replay.progress.answer_delivery import is_unread
from replay.scenario.departure import Departure, drift_of, is_refused
from replay.scenario.faults import Faults
from replay.scenario.replay_options import ReplayOptions, ToolPolicy
from replay.scenario.script import Scripted
from replay.scenario.tool_policies import policy_of
from replay.virtual_time.virtual_clock import VirtualClock


class State:
    """The used exchanges of a fixture, the emitted records of the agent, and the first divergence."""

    def __init__(self, fixture: Fixture, options: ReplayOptions) -> None:
        """Start at the beginning of `fixture`."""
        self.fixture, self.options = fixture, options
        rules = [*fixture.header.get("normalizers", []), *options.normalizers]
        self.renaming = Renaming(options.redactors, Normalizing(rules) if rules else None)
        names = [name for name in fixture.lanes if not is_inside_answer(name)]
        self.lanes = {name: Lane(fixture, name, self.renaming, options.match) for name in names}
        self.calls = Calls(fixture, self.renaming)
        self.answers = Answers(fixture.world, lambda lane: self.lane(lane).asked, self.renaming)
        self.tools = options.tools
        """Which tools run: as in the options, until `until` changes it."""
        self.until: int | None = None
        """The turn of the main lane whose response is the last one that is given; None if all are."""
        self.live_from: int | None = None
        """The turn of the main lane from which `tools` decides which tools run; None: from the start."""
        self.departure: Departure | None = None
        """Where the agent leaves the recorded path, if it may."""
        self.stranger, self.process_id = "", world.process_id()
        """The file with the requests of other processes, and the process that replays."""
        self.looks: list[Callable[[], object]] = []
        """A check for a divergence that happened elsewhere, such as in another process."""
        self.beyond: list[tuple[str, bytes]] = []
        """Path and body of the requests after that turn."""
        self.script: Sequence[Scripted] = ()
        """The responses to them; at their end the replay ends."""
        self.faults = Faults(options.faults)
        first = options.accept_from
        self.accepting = None if first is None else Accepting(fixture, self.renaming, first)
        """Accepts live requests in place of recorded ones; None if nothing is accepted."""
        self.numbers: dict[str | int, int] = {}
        """The recorded request of a live one, by its attempt or the identity of its body, until the agent emits it."""
        self.asked_by: dict[str, int] = {}
        """The recorded request of an attempt of a client that does not name its lane."""
        self.ended: set[int] = set()
        """The requests whose responses the agent has read to their end."""
        self.waiting: set[int] = set()
        """The requests whose responses are being held."""
        self.asked_in: dict[int, int] = {}
        """The thread that sent each request."""
        self.jobs: dict[int, Job] = {}
        """The task, work item or thread that made each request, if it is known."""
        self.threads = frozenset(threading.enumerate())
        """The threads that existed before, which are not the agent's."""
        self.running = 0
        """How many runs of the agent are in progress."""
        self.unread: dict[int, Site | None] = {}
        """Where in the agent requests were sent whose responses are errors with an unread body."""
        self.started: functools.partial[Any] | None = None
        """What this replay runs, if that is not the recorded entry point."""
        self.test = ""
        """The ID of the pytest test that replays; empty outside of a marked test."""
        self.has_stopped = False
        """Whether the replay was told to stop, although it may answer until a nested one has stopped, too."""
        self._moved_ns = world.monotonic()
        self._results: dict[str, Returned | None] = {}
        """The results of the sessions that have ended, by session ID."""
        self.records: list[tuple[Record, int | None]] = []
        """What the agent emitted, each record with the number of the request whose body it has."""
        self.divergence: Divergence | None = None
        self.refused: NotNamedError | NotSendableError | None = None
        """What was rejected first: a call after the path whose tool must be named, or a request of a fork that the
        provider would reject.
        """
        self.suspicions: list[Suspicion] = []
        """What was accepted as the recorded path but may not be, such as responses given by order alone."""
        self.leftovers = ""
        """A hint at state that an earlier run in this process has left; see `replay.agent_code.leftover_state`."""
        self.sections: dict[str, Sequence[tuple[str, str]]] = {}
        """The sections of the last system prompt of each lane, if the agent loop reported them."""
        self.functions: list[Callable[[str], Callable[..., Any] | None]] = []
        """Finds the function that a tool runs, one finder for each replayed world."""
        self.given = ambient_in(fixture, options)
        """The clock, IDs and random numbers for the agent."""
        self.reads = Reads()
        """What was read outside of that, if requested."""
        self.clock: VirtualClock | None = None
        """The virtual clock of the agent; None if its time is real."""
        self.lock = threading.RLock()
        if options.fork is not None:
            self.stop_after(options.fork.turn, "live")
            check_sendable(fixture, options.fork.turn)

    def stop_after(self, turn: int, tools: ToolPolicy) -> None:
        """Let the recorded path end with the response of a turn, in which the tools of a policy run.

        Raises:
            UsageError: the recording has no such turn.
        """
        turns = [ask.turn for ask in self.fixture.asks if ask.lane == "main" and ask.turn]
        if self.fixture.until_turn is not None:
            turns = [each for each in turns if each <= self.fixture.until_turn]
        if turn not in turns:
            raise UsageError(
                f"the recording has no turn {turn}",
                where=str(self.fixture.path),
                todo=f"It has turns 1 to {max(turns, default=0)}",
            )
        self.until, self.live_from, self.tools = turn, turn, tools

    def watch(self, failing_turn: int, tools: ToolPolicy) -> None:
        """Allow the agent to leave the recorded path, and let the tools of a policy run from a turn on.

        Args:
            failing_turn: see `Departure.failing_turn`.
            tools: which tools run.
        """
        self.departure, self.tools = Departure(failing_turn), tools
        self.live_from = failing_turn

    def departs(self, expected: Ask | None = None) -> bool:
        """Return whether the agent may leave the recorded path here; if so, record that it has left it."""
        departure = self.departure
        if departure is None or departure.has_happened:
            return departure is not None
        turns = self.lane("main").turns
        is_free = turns or not self.lane("main").left or (expected and is_refused(expected))
        if not is_free:
            return False
        departure.has_happened, departure.turn, departure.expected = True, turns, expected
        self.until = max(turns, 1)
        return True

    def has_ended(self, lane: Lane) -> bool:
        """Return whether the complete main lane of a session that was frozen up to a turn was used."""
        return self.fixture.until_turn is not None and lane.name == "main" and not lane.left

    def is_past(self, lane: Lane) -> bool:
        """Return whether the recorded path of `until` has ended in a lane."""
        if self.until is None or self.lane("main").turns < self.until:
            return False
        goes_on = self.options.fork is not None or self.script
        return lane.name == "main" or bool(goes_on and not lane.left)

    @property
    def is_live(self) -> bool:
        """Whether the path of a fork has ended: its last recorded response was given, and everything after it runs
        live.
        """
        return self.options.fork is not None and self.is_past(self.lane("main"))

    def is_before(self, recorded: RecordedTool) -> bool:
        """Return whether a recorded call is before the turn of `until`."""
        return self.live_from is not None and self.calls.turn_of(recorded) < self.live_from

    def is_after(self, recorded: RecordedTool) -> bool:
        """Return whether a recorded call is after the turn of `until`."""
        return self.until is not None and self.calls.turn_of(recorded) > self.until

    def check_beyond(self, name: str, *, is_mutating: bool, is_function: bool = False) -> None:
        """Let a call run that was not recorded, after the path. If it is mutating, its tool must be named, because no
        recording answers it.

        Raises:
            ReplayStopped: no response caused it, so nothing requested it.
            NotNamedError: a scripted response led to it.
        """
        if not is_mutating or self.options.fork is not None:
            return
        if policy_of(self.tools, name, is_mutating=True, is_function=is_function) != "replay":
            return
        if len(self.beyond) > len(self.script):
            raise ReplayStopped(f"replayed until turn {self.until}")
        self.refused = self.refused or NotNamedError(
            f"{name!r} changes something outside, and was called after the recorded path",
            where=str(self.fixture.path),
            todo=f"If it is to run, name it in tools=, as in tools=[{name!r}]",
        )
        raise self.refused

    def check_departed(self, name: str, *, is_mutating: bool, is_function: bool = False) -> None:
        """Check that a call which was not recorded may run after the agent has left the recorded path.

        Raises:
            ReplayStopped: its tool was not chosen to run.
        """
        if (
            policy_of(self.tools, name, is_mutating=is_mutating, is_function=is_function)
            != "replay"
        ):
            return
        if self.departure is not None:
            self.departure.is_stopped = True
        raise ReplayStopped(
            f"the call of {name} was not recorded, and no tool is configured to answer it"
        )

    def move(self, ask: Ask, at: int) -> None:
        """Move the clock to the start of a request, 0, or to its response, 1."""
        if ask.at_ms is not None:
            self.given.move(ask.lane, ask.at_ms[at])

    def collect(self, record: Record) -> None:
        """Keep a record, but no body that the fixture contains: those of 1,000 turns are a gigabyte."""
        number = None
        if isinstance(record, SessionReturn):
            self._results[record.end.session_id] = record.result
            record = record.end
        if isinstance(record, ModelExchange):
            number = self.numbers.pop(key_of(record.question), None)
            record = record if number is None else with_body(record, b"")
            self.ended |= {number} if number is not None else set()
            if number is not None:
                self.move(self.fixture.asks[number - 1], 1)
        elif isinstance(record, ToolExchange):
            self.calls.heard(record)
        elif isinstance(record, Permission):
            self.calls.decided(record)
        elif isinstance(record, WorldExchange):
            self.answers.told(record)
        self.records.append((record, number))
        self._moved_ns = world.monotonic()

    def take(self, lane: Lane, question: Question) -> Ask | Mismatch:
        """Return the recorded request of a lane that a live one matches, or the mismatch."""
        origin = question.origin
        since = self.asked_by.get(origin.task_previous) if origin and origin.task_previous else None
        taken = lane.take(question, since)
        if self.accepting is not None and isinstance(taken, Mismatch):
            due = None if taken.elsewhere is not None else taken.expected
            taken = lane.settle(due) if due and self.accepting.takes(due, question) else taken
        if self.departure is not None and isinstance(taken, Mismatch):
            taken = self._settled(lane, question, taken)
        self._moved_ns = world.monotonic()
        if isinstance(taken, Ask) and is_unread(taken.answer):
            self.unread[taken.number] = call_site()
        if isinstance(taken, Ask) and origin is not None:
            self.asked_by[origin.attempt_id] = taken.number
            if origin.job is not None:
                self.jobs[taken.number] = origin.job
        while lane.guesses:
            guess = lane.guesses.pop()
            self.suspicions.append(Suspicion(lane.name, guess.taken, guess.text))
        return taken

    def _settled(self, lane: Lane, question: Question, missed: Mismatch) -> Ask | Mismatch:
        """Take a request for the recorded one if the agent does the same, with another prompt or other tool results.

        The first request of a session may differ in any way, and later ones by the same keys. Tool results may differ
        before the failing turn.
        """
        due, departure = missed.expected, self.departure
        if due is None or departure is None or departure.has_happened or is_refused(due):
            return missed
        if missed.elsewhere is not None or due.path != question.path:
            return missed
        drift = drift_of(*self.bodies(due, question))
        if drift is None:
            return missed
        if not any(each.asked for each in self.lanes.values()) and len(lane.due()) == 1:
            departure.keys = drift.keys
        changed = drift.results - departure.results
        is_early = self.lane("main").turns < departure.failing_turn
        if not {*drift.keys} <= {*departure.keys} or (changed and not is_early):
            return missed
        departure.results |= changed
        return lane.settle(due)

    def bodies(self, due: Ask, question: Question) -> tuple[Any, Any]:
        """Return the bodies of a recorded and of a live request, parsed and normalized for comparison."""
        body = self.fixture.body(due.number)
        came = self.renaming.read_bytes(body, asked_body(question, self.renaming))
        return value_of(body), value_of(came)

    def unfinished(self, numbers: Iterable[int]) -> set[int]:
        """Return the requests among some that were not sent yet, or whose jobs have not ended."""
        jobs = self.jobs
        asked = self.asked_in
        return {n for n in numbers if n not in asked or (n in jobs and not jobs[n].is_over)}

    @property
    def normalized(self) -> dict[str, int]:
        """How many values each normalizer has hidden."""
        return dict(self.renaming.normalizing.applied) if self.renaming.normalizing else {}

    def idle_ns(self) -> int:
        """Return how long the agent has neither sent nor emitted anything."""
        return world.monotonic() - self._moved_ns

    def lane(self, name: str) -> Lane:
        """Return a lane by its name; a lane that was not recorded is empty."""
        if name not in self.lanes:
            self.lanes[name] = Lane(self.fixture, name, self.renaming, self.options.match)
        return self.lanes[name]

    def error(self, divergence: Divergence) -> DivergenceError:
        """Return the error of the first divergence, which is this one if there was none before."""
        if self.divergence is None:
            self.divergence = divergence
        return DivergenceError(self.divergence)

    def raise_divergence(self, cause: BaseException | None = None) -> None:
        """Raise the first divergence again, or a rejection, if there was one; `cause` is the resulting exception."""
        for look in self.looks:
            look()
        if self.divergence is not None:
            raise DivergenceError(self.divergence) from cause
        if self.refused is not None:
            raise self.refused

    @property
    def progress(self) -> Progress:
        """How many of the recorded requests, tool calls and other questions were used."""
        asked = sum(lane.asked for lane in self.lanes.values())
        return Progress(
            requests_matched=asked,
            requests=sum(len(lane.asks) for lane in self.lanes.values()),
            tools_matched=self.calls.matched,
            tools=self.calls.total,
            answers_matched=self.answers.total - len(self.answers.left),
            answers=self.answers.total,
        )

    @property
    def session_end(self) -> SessionEnd | None:
        """How the session ended this time; None if it has not."""
        ends = [record for record, _ in self.records if isinstance(record, SessionEnd)]
        return settled(ends[-1], last_of(r for r, _ in self.records)) if ends else None

    @property
    def result(self) -> Returned | None:
        """The result of the session in this replay; None if it is not known, or the session has not ended."""
        end = self.session_end
        return None if end is None else self._results.get(end.session_id)


def key_of(question: Question) -> str | int:
    """Return the key of a request until the agent emits it."""
    return question.origin.attempt_id if question.origin else id(question.body)


def with_body(exchange: ModelExchange, body: bytes) -> ModelExchange:
    """Return an exchange with another request body."""
    question = dataclasses.replace(exchange.question, body=body)
    return dataclasses.replace(exchange, question=question)
