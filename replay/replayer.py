"""The replayer: runs an agent in a world that answers from a fixture, and finds where it parts from it.

While a `Replay` is open, every instrumented client of the process is answered from the fixture, tools of
the agent loop answer from it too, waits take no time, records go to the replay and not into a journal,
and no connection is let out. The first divergence is kept: every later question raises it again, and
so does the end of the replay, even if the agent swallowed it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Literal

from agentobs import world
from agentobs.errors import UsageError
from agentobs.recording import wire
from agentobs.records.canonical import canonical
from agentobs.records.exchanges import (
    MADE_BY_THE_LOOP,
    SILENT,
    Answer,
    ModelExchange,
    Place,
    Question,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
    is_inside_answer,
)
from agentobs.records.facts import Permission, SessionEnd, settled
from agentobs.redaction import Rule
from agentobs.sink import Record, sink
from agentobs.world import World
from replay.diff import Difference, differences, safe
from replay.divergence import (
    SHOWN,
    Divergence,
    DivergenceError,
    Kind,
    Progress,
    ReplayStopped,
    explain,
    listed,
)
from replay.ends import Results, ended_otherwise, last_of, results_of, went_beside
from replay.entry import awaited, entry_of, in_event_loop, let_go
from replay.fixture import Ask, Fixture, RecordedAnswer, RecordedTool
from replay.guard import no_network
from replay.lanes import Lane, Mismatch, asked_body, compared, without_boundary
from replay.pieces import value_of
from replay.renaming import Renaming
from replay.step import Next, Step, step_of
from replay.tools import Calls, Missed, ask_of, same_call
from replay.trajectory import trajectory
from replay.world import (
    WHY,
    Answers,
    RecordedAbort,
    lane_here,
    meant,
    never,
    same_question,
    silence,
    unasked,
)

ToolPolicy = Literal["recorded", "live"] | Collection[str]
"""Which tools of the agent loop run: none, all, or those of these names."""
Entry = Callable[..., Any] | EllipsisType | None
"""What starts the agent: a function, the dots of a frozen test that nobody has filled in, or what was recorded."""
KEYS = ("ANTHROPIC_API_KEY",)
"""What the SDK wants to have before it asks anything; a replay lends a made-up one."""
MESSAGES = "/v1/messages"
"""The path of the questions that make turns."""
SAME_PATH = "all requests and tool calls were the recorded ones; the agent judged them differently"
"""Why something ended otherwise after the recorded path."""


class Replay:
    """One replay of a fixture; a context manager."""

    def __init__(
        self,
        fixture: Fixture,
        *,
        tools: ToolPolicy = "recorded",
        network: bool = False,
        redactors: Sequence[Rule] = (),
    ) -> None:
        """Prepare to answer from `fixture`; `network=True` lets connections of live tools out.

        `redactors` are the rules of your own that it was recorded with, see `agentobs.Options`.
        """
        self.fixture = fixture
        self._renaming = Renaming(redactors)
        self._records: list[tuple[Record, int | None]] = []
        self._numbers: dict[int, int] = {}
        self._policy = tools
        self._network = network
        lanes = [name for name in fixture.lanes if not is_inside_answer(name)]
        self._lanes = {name: Lane(fixture, name, self._renaming) for name in lanes}
        self._calls = Calls(fixture, self._renaming)
        self._answers = Answers(fixture.world, lambda lane: self._lane(lane).asked, self._renaming)
        self._until: int | None = None
        self._captured: tuple[str, bytes] | None = None
        self._divergence: Divergence | None = None
        self._stack: ExitStack | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Replay:
        """Start answering from the fixture."""
        with ExitStack() as stack:
            stack.enter_context(wire.answering(self._answer, self._stopped))
            stack.enter_context(sink.redirect(self._collect))
            stack.enter_context(world.transformed(self._world))
            for key in KEYS:
                stack.enter_context(world.lent_environ(key, "a-made-up-key"))
            if not self._network:
                stack.enter_context(no_network(self._refuse))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop answering; raises the divergence that there was, whatever else was raised."""
        self.stop()
        if error is None or (
            self._divergence is not None and not isinstance(error, DivergenceError)
        ):
            self.check()

    def stop(self) -> None:
        """Stop answering without judging."""
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def run(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Run the agent as it was run when it was recorded, and return what it returns.

        Without a function this imports the recorded entry and calls it with the recorded arguments. An
        exception that the recording ended with, too, is part of the path and is not raised.

        Raises:
            DivergenceError: the path parts from the recorded one, or ends elsewhere.
            UsageError: the recording does not say how the agent is started.
        """
        result, error = self._ran(self._call(function, args, kwargs))
        return self._judged(result, error)

    async def arun(self, function: Entry = None, /, *args: Any, **kwargs: Any) -> Any:
        """Do as `run`, from inside an event loop."""
        result, error = await self._aran(self._call(function, args, kwargs))
        return self._judged(result, error)

    def until(
        self,
        function: Entry = None,
        /,
        *args: Any,
        turn: int,
        tools: ToolPolicy = "recorded",
        **kwargs: Any,
    ) -> Next:
        """Replay up to the answer of a turn, let the agent go on, and return what it does next.

        The recorded answers lead up to and include that of turn `turn` of the main lane. The agent's next
        question to the model is kept, not answered.

        Args:
            function: what starts the agent, with its arguments; default the recorded entry.
            args: its arguments.
            turn: the turn, from 1.
            tools: which tools of the agent loop run for real in that turn; those of earlier turns never
                do. Tools of other agents are their own code, and always run.
            kwargs: its arguments by name.

        Raises:
            DivergenceError: the path parts before that turn ends, or the agent never gets there.
            UsageError: the recording has no such turn.
        """
        self._set_until(turn, tools)
        _, error = self._ran(self._call(function, args, kwargs))
        return self._stepped(turn, error)

    async def auntil(
        self,
        function: Entry = None,
        /,
        *args: Any,
        turn: int,
        tools: ToolPolicy = "recorded",
        **kwargs: Any,
    ) -> Next:
        """Do as `until`, from inside an event loop."""
        self._set_until(turn, tools)
        _, error = await self._aran(self._call(function, args, kwargs))
        return self._stepped(turn, error)

    def _set_until(self, turn: int, tools: ToolPolicy) -> None:
        turns = [ask.turn for ask in self.fixture.asks if ask.lane == "main" and ask.turn]
        if turn not in turns:
            raise UsageError(
                f"the recording has no turn {turn}",
                where=str(self.fixture.path),
                todo=f"It has turns 1 to {max(turns, default=0)}",
            )
        self._until, self._policy = turn, tools

    def _stepped(self, turn: int, error: BaseException | None) -> Next:
        self.raise_divergence(error)
        if self._lane("main").turns < turn:
            summary = f"the agent ended before turn {turn} was answered"
            raised = f"it raised {type(error).__name__}: {error}" if error else self._end_reason()
            short = self._report("missing", self._lane("main"), summary, why=raised)
            raise DivergenceError(self._latch(short)) from error
        return Next(self._now(turn, error), self._recorded(turn))

    def _judged(self, result: Any, error: BaseException | None) -> Any:
        """Return a run's result, or raise what it differs in; an exception may be the recorded one."""
        self.raise_divergence(error)
        if error is not None and self.fixture.header.get("reason") != type(error).__name__:
            raise error
        self.check()
        self._check_outcome()
        return result

    def _ran(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call the agent; return its result, or the exception that it ended with."""
        try:
            result = call()
            if inspect.isawaitable(result):
                if in_event_loop():
                    let_go(result)
                    raise UsageError(
                        "the agent is async, and an event loop runs", todo="Use arun or auntil"
                    )
                result = asyncio.run(awaited(result))
        except (DivergenceError, ReplayStopped):
            return None, None
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            return None, error
        return result, None

    async def _aran(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            result = call()
            return (await result if inspect.isawaitable(result) else result), None
        except (DivergenceError, ReplayStopped):
            return None, None
        except (Exception, SystemExit) as error:
            return None, error

    def check(self) -> None:
        """Raise the first divergence, or what was recorded and never asked."""
        self.raise_divergence()
        if self._until is not None:
            return
        for lane in self._lanes.values():
            if lane.left and not went_beside(self.fixture, lane.name):
                raise DivergenceError(self._latch(self._missing(lane)))
        for answer in self._answers.left:
            if not went_beside(self.fixture, answer.lane):
                raise DivergenceError(self._latch(self._not_asked(answer)))
        now = results_of(record for record, _ in self._records)
        # Outside every session the loop tells nobody what it answers itself, and how it ends.
        if now and (missed := self._calls.missed()):
            raise DivergenceError(self._latch(self._missed(missed)))
        if now and self.fixture.results is not None:
            self._check_results(self.fixture.results, now)

    def raise_divergence(self, cause: BaseException | None = None) -> None:
        """Raise the first divergence again, if there was one; `cause` is what it led to."""
        if self._divergence is not None:
            raise DivergenceError(self._divergence) from cause

    @property
    def trajectory(self) -> str:
        """What the agent did, one line a step; made to be compared with a snapshot."""
        return trajectory(self.records)

    @property
    def records(self) -> Iterator[Record]:
        """What the agent recorded, in order; a request's body is the recorded one."""
        for record, number in self._records:
            if isinstance(record, ModelExchange) and number is not None:
                yield _with_body(record, self.fixture.body(number))
            else:
                yield record

    @property
    def progress(self) -> Progress:
        """How many of the recorded requests, tool calls and other questions were asked."""
        asked = sum(lane.asked for lane in self._lanes.values())
        return Progress(
            requests_matched=asked,
            requests=sum(len(lane.asks) for lane in self._lanes.values()),
            tools_matched=self._calls.matched,
            tools=self._calls.total,
            answers_matched=self._answers.total - len(self._answers.left),
            answers=self._answers.total,
        )

    def _answer(self, question: Question, place: Place) -> Answer:
        with self._lock:
            self.raise_divergence()
            lane = self._lane(place.lane)
            taken = lane.take(question) if not self._is_next(lane, question) else None
            if self._is_past(lane) and not isinstance(taken, Ask):
                came = asked_body(question, self._renaming)
                self._captured = self._captured or (question.path, came)
                raise ReplayStopped(f"replayed until turn {self._until}")
            if isinstance(taken, Mismatch) and self._is_beyond(lane, taken.expected):
                return Answer(None, {}, (), "cancelled")
            if not isinstance(taken, Ask):
                assert taken is not None
                raise DivergenceError(self._latch(self._mismatch(lane, question, taken)))
            self._numbers[id(question.body)] = taken.number
            # Our own loop, which alone says its turn, waits by the world's clock: the headers decide how it goes on.
            return taken.answer if place.turn is not None else _without_wait(taken.answer)

    def _stopped(self) -> Exception:
        """Return what a client gets that goes on reading where it had stopped when it was recorded."""
        return ReplayStopped("the client stopped reading here when this was recorded")

    def _is_beyond(self, lane: Lane, expected: object = None) -> bool:
        """Return whether an agent that was left when this was recorded has come further now."""
        return expected is None and went_beside(self.fixture, lane.name)

    def _is_past(self, lane: Lane) -> bool:
        """Return whether the recorded path of `until` has ended."""
        return self._until is not None and lane.name == "main" and lane.turns >= self._until

    def _is_next(self, lane: Lane, question: Question) -> bool:
        """Return whether this is the question that `until` waits for: the next one for a message."""
        return self._is_past(lane) and question.path.partition("?")[0] == MESSAGES

    def _world(self, live: World) -> World:
        def stop_tool(tool_use_id: str) -> None:
            if (lane_here(), tool_use_id) in self._calls.live:
                live.stop_tool(tool_use_id)

        return dataclasses.replace(
            live,
            run_tool=self._tool_runner(live),
            tool_name=self._tool_name,
            stop_tool=stop_tool,
            ask=self._ask,
            abort=RecordedAbort(self._answers),
            sleep=_no_wait,
        )

    async def _ask(self, question: WorldQuestion) -> Any:
        """Answer for the world beside model and tools."""
        with self._lock:
            self.raise_divergence()
            name = lane_here()
            lane, recorded = self._lane(name), self._answers.of(name, question)
            same = recorded is not None and same_question(
                recorded.question, question, self._renaming
            )
            if recorded is not None and same:
                return self._answers.give(recorded)
            if recorded is None and question.kind in SILENT:
                return silence(question.kind)
            if not self.fixture.asks_the_world:
                answer = unasked(question)
            elif self._is_past(lane):
                # Beyond the recorded path nobody is there to ask, least of all a person.
                answer = world.nobody(question)
            elif recorded is None and self._is_beyond(lane):
                known = functools.partial(self._world_mismatch, lane, question, None)
                answer = never(lambda: DivergenceError(self._latch(known())))
            else:
                raise DivergenceError(self._latch(self._world_mismatch(lane, question, recorded)))
        return await answer

    def _tool_name(self, name: str, former: Sequence[str]) -> str:
        """Return the name that a tool had when this was recorded: its own, else the first former one."""
        if not former or name in self.fixture.tool_names:
            return name
        return next((old for old in former if old in self.fixture.tool_names), name)

    def _tool_runner(self, live: World) -> Any:
        async def run_tool(question: ToolQuestion) -> ToolAnswer:
            self.raise_divergence()
            lane = lane_here()
            recorded = self._calls.of(lane, question.tool_use_id)
            if self._runs_live(question, recorded):
                self._calls.live.add((lane, question.tool_use_id))
                self._calls.came(recorded)
                answer = await live.run_tool(question)
                return self._calls.ran(lane, question.tool_use_id, answer)
            missing = functools.partial(self._tool_mismatch, lane, question, None)
            if recorded is None and self._is_beyond(self._lane(lane)):
                await never(lambda: DivergenceError(self._latch(missing())))
            if (
                recorded is None
                or recorded.answer.outcome in MADE_BY_THE_LOOP
                or not same_call(recorded.question, question, self._renaming)
            ):
                raise DivergenceError(self._latch(self._tool_mismatch(lane, question, recorded)))
            self._calls.came(recorded)
            return self._calls.ran(lane, question.tool_use_id, recorded.answer)

        return run_tool

    def _runs_live(self, question: ToolQuestion, recorded: RecordedTool | None) -> bool:
        if self._until is not None and recorded and self._calls.turn_of(recorded) < self._until:
            return False
        if isinstance(self._policy, str):
            return self._policy == "live"
        return question.name in self._policy

    def _collect(self, record: Record) -> None:
        """Keep a record, but no body that the fixture has: those of 1,000 turns are a gigabyte."""
        number = None
        if isinstance(record, ModelExchange):
            number = self._numbers.pop(id(record.question.body), None)
            record = record if number is None else _with_body(record, b"")
        elif isinstance(record, ToolExchange):
            self._calls.heard(record)
        elif isinstance(record, Permission):
            self._calls.decided(record)
        elif isinstance(record, WorldExchange):
            self._answers.told(record)
        self._records.append((record, number))

    def _call(
        self, function: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        if self._stack is None:
            raise UsageError("the replay is not open", todo="Write `with replayed:` around it")
        if isinstance(function, EllipsisType):
            raise UsageError(
                "the test does not say how the agent is started",
                where=str(self.fixture.path),
                todo="Put the function that starts it, and its arguments, where the dots stand",
            )
        if function is None:
            function, kwargs = (
                entry_of(self.fixture),
                {**(self.fixture.header["arguments"] or {}), **kwargs},
            )
        return functools.partial(function, *args, **kwargs)

    def _lane(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = Lane(self.fixture, name, self._renaming)
        return self._lanes[name]

    def _latch(self, divergence: Divergence) -> Divergence:
        if self._divergence is None:
            self._divergence = divergence
        return self._divergence

    def _refuse(self, address: str) -> BaseException:
        summary = f"a connection to {address} was attempted: nothing leaves a replay"
        why = "a client that agentobs.record() was not called with, or a tool that ran live"
        return DivergenceError(
            self._latch(self._report("network", self._lane("main"), summary, why=why))
        )

    def _mismatch(self, lane: Lane, question: Question, missed: Mismatch) -> Divergence:
        if missed.expected is None:
            summary = f"one more request than recorded: {question.method} {question.path}"
            return self._report(
                "extra", lane, summary, why="the recording of this lane ends before it"
            )
        if missed.elsewhere is not None:
            place = [ask.number for ask in lane.asks].index(missed.elsewhere.number) + 1
            summary = f"this is request {place} of the recording, asked out of order"
            return self._report("order", lane, summary)
        old = value_of(self.fixture.body(missed.expected.number))
        came = self._renaming.read_bytes(
            self.fixture.body(missed.expected.number), asked_body(question, self._renaming)
        )
        new = value_of(came)
        if old is None or new is None:
            body = self.fixture.body(missed.expected.number)
            old = without_boundary(body, missed.expected.headers).decode("utf-8", "replace")
            new = without_boundary(came, question.headers).decode("utf-8", "replace")
        found = differences(compared(missed.expected, old), compared(question, new))
        first = found[0] if found else None
        went = functools.partial(self._calls.went, lane.name)
        why = explain(first, new, went, self.fixture.tool_use)
        return self._report("content", lane, "the bodies differ", found, why)

    def _missing(self, lane: Lane) -> Divergence:
        due = lane.left[0]
        summary = f"{due.method} {due.path} was recorded next and never asked"
        return self._report("missing", lane, summary, why=self._end_reason())

    def _end_reason(self) -> str:
        end = self._session_end()
        return (
            f"the session ended before it: {end.outcome} {end.reason or ''}".rstrip() if end else ""
        )

    def _tool_mismatch(
        self, lane: str, question: ToolQuestion, recorded: RecordedTool | None
    ) -> Divergence:
        if recorded is None:
            summary = f"tool {question.name} was called ({question.tool_use_id}); the recording has no result for it"
            return self._report("tool", self._lane(lane), summary)
        outcome = recorded.answer.outcome
        if outcome in MADE_BY_THE_LOOP:
            summary = f"tool {question.name} was run ({question.tool_use_id}); it was {outcome} when it was recorded"
            why = "permissions, the tools or their inputs are checked otherwise than when it was recorded"
            return self._report("tool", self._lane(lane), summary, why=why)
        old, new = ({"name": q.name, "input": q.input} for q in (recorded.question, question))
        why = f"tool call {question.tool_use_id} reached the tool with something else than recorded"
        return self._report(
            "tool", self._lane(lane), "a tool call differs", differences(old, new), why
        )

    def _world_mismatch(
        self, lane: Lane, question: WorldQuestion, recorded: RecordedAnswer | None
    ) -> Divergence:
        kind, key = question.kind, safe(self._renaming.clean_text(question.key))
        if recorded is not None:
            found = differences(
                {kind: meant(recorded.question)},
                {kind: json.loads(self._renaming.clean_text(canonical(meant(question))))},
            )
            summary = f"{kind} {key} was asked about something else"
            why = f"{kind} {key} is about something else than when it was recorded"
            return self._report("world", lane, summary, found, why, between=True)
        call = self.fixture.tool_use(question.key)
        about = f" for {safe(str(call.get('name')))}" if call else ""
        summary = f"{kind} {key} was asked{about}; the recording has no answer for it"
        near = self._answers_near(lane)
        return self._report("world", lane, summary, why=f"{WHY[kind]}; {near}", between=True)

    def _answers_near(self, lane: Lane) -> str:
        """Return what was asked of the world in this part of the recording, in one line."""
        near = [
            a.question for a in self.fixture.world if (a.lane, a.after) == (lane.name, lane.asked)
        ]
        if not near:
            return "nothing was asked here"
        named = [f"{question.kind} {safe(question.key)}" for question in near[:SHOWN]]
        more = f" and {len(near) - SHOWN} more" if len(near) > SHOWN else ""
        return f"asked here were {', '.join(named)}{more}"

    def _missed(self, missed: Missed) -> Divergence:
        recorded, lane = missed.recorded, self._lane(missed.recorded.lane)
        ask = ask_of(self.fixture, recorded)
        kind: Kind = "missing" if missed.now is None else "tool"
        why = missed.why if missed.now is not None else self._end_reason()
        found = missed.differences()
        report = self._report(kind, lane, missed.summary, found, why, between=True)
        number = lane.asks.index(ask) + 1 if ask is not None else report.number
        others = self._calls.total - self._calls.matched - 1
        after = f"{_count(others, 'other tool call')} never asked" if others else ""
        return dataclasses.replace(report, number=number, turn=recorded.turn, never_asked=after)

    def _check_results(self, recorded: Results, now: Results) -> None:
        recorded = {lane: ends for lane, ends in recorded.items() if not is_inside_answer(lane)}
        found = ended_otherwise(recorded, now)
        if found is None:
            return
        lane, old, new = found
        summary = "an interaction ended differently"
        differ = differences({lane: old}, {lane: new})
        report = self._report("outcome", self._lane(lane), summary, differ, SAME_PATH, between=True)
        raise DivergenceError(self._latch(report))

    def _not_asked(self, answer: RecordedAnswer) -> Divergence:
        kind, lane = answer.question.kind, self._lane(answer.lane)
        what = "told" if kind == "abort" else "asked"
        turn = f" in turn {answer.turn}" if answer.turn else ""
        summary = f"{kind} {safe(answer.question.key)} was recorded{turn} and never {what}"
        return self._report("missing", lane, summary, why=WHY[kind], between=True)

    def _report(
        self,
        kind: Kind,
        lane: Lane,
        summary: str,
        found: list[Difference] | None = None,
        why: str = "",
        *,
        between: bool = False,
    ) -> Divergence:
        """Describe a divergence at the request that is due, or `between` the last one and the next."""
        due = None if between else next(iter(lane.due()), None)
        turn = lane.turns or None if between else due.turn if due else None
        return Divergence(
            fixture=self.fixture.name,
            path=_short_path(self.fixture.path.parent),
            kind=kind,
            lane=lane.name,
            number=max(lane.asked, 1) if between else lane.asked + 1,
            of=len(lane.asks),
            turn=turn,
            summary=summary,
            differences=tuple((found or [])[:SHOWN]),
            more=max(len(found or []) - SHOWN, 0),
            why=why,
            progress=self.progress,
            never_asked=self._never_asked(due),
        )

    def _never_asked(self, due: Ask | None) -> str:
        left = sum(len(lane.left) for lane in self._lanes.values()) - (due is not None)
        tools = self._calls.total - self._calls.matched
        parts = [_count(left, "recorded request")] if left > 0 else []
        parts += [_count(tools, "tool call")] if tools > 0 else []
        others = len(self._answers.left)
        parts += [_count(others, "other question")] if others > 0 else []
        return f"{listed(parts)} never asked" if parts else ""

    def _check_outcome(self) -> None:
        end, header = self._session_end(), self.fixture.header
        if end is None or header.get("outcome") not in ("completed", "failed"):
            return
        old = {"outcome": header["outcome"], "reason": header["reason"]}
        new = {"outcome": end.outcome, "reason": end.reason}
        if old != new:
            found = differences(old, new)
            summary = "the session ended differently"
            raise DivergenceError(
                self._latch(self._report("outcome", self._lane("main"), summary, found, SAME_PATH))
            )

    def _session_end(self) -> SessionEnd | None:
        ends = [record for record, _ in self._records if isinstance(record, SessionEnd)]
        return settled(ends[-1], last_of(r for r, _ in self._records)) if ends else None

    def _now(self, turn: int, error: BaseException | None) -> Step:
        if self._captured is not None:
            path, came = self._captured
            later = self._lane("main").asked_after(turn, path)
            body = self.fixture.body(later.number) if later else b""
            return step_of(value_of(self._renaming.read_bytes(body, came)))
        end, name = self._session_end(), type(error).__name__ if error else None
        outcome = end.outcome if end else "failed" if error else "completed"
        return step_of(None, outcome, end.reason if end else name)

    def _recorded(self, turn: int) -> Step:
        """Return what was recorded after a turn: the next question of the kind that was asked now."""
        later = self._lane("main").asked_after(
            turn, self._captured[0] if self._captured else MESSAGES
        )
        if later is not None:
            return step_of(value_of(self.fixture.body(later.number)))
        return step_of(None, self.fixture.header.get("outcome"), self.fixture.header.get("reason"))


def _with_body(exchange: ModelExchange, body: bytes) -> ModelExchange:
    question = dataclasses.replace(exchange.question, body=body)
    return dataclasses.replace(exchange, question=question)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _without_wait(answer: Answer) -> Answer:
    """Return an answer whose retry takes no time: the recorded wait is replaced by the shortest one."""
    if answer.status is None or answer.status < 400:
        return answer
    headers = {
        k: v for k, v in answer.headers.items() if k not in ("retry-after", "retry-after-ms")
    }
    return dataclasses.replace(answer, headers={**headers, "retry-after-ms": "0.001"})


async def _no_wait(seconds: float) -> None:
    del seconds
    await asyncio.sleep(0)


def _short_path(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
