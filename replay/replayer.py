"""The replayer: runs an agent in a world that answers from a fixture, and finds where it parts from it.

While a `Replay` is open, every instrumented client of the process is answered from the fixture, tools of
the agent loop answer from it too, waits take no time, records go to the replay and not into a journal,
and no connection is let out. The first divergence is kept: every later question raises it again, and
so does the end of the replay, even if the agent swallowed it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Literal

from agentobs import tracing, world
from agentobs.errors import UsageError
from agentobs.recording import wire
from agentobs.records.canonical import canonical
from agentobs.records.exchanges import (
    Answer,
    ModelExchange,
    Place,
    Question,
    ToolAnswer,
    ToolQuestion,
)
from agentobs.records.facts import InteractionEnd, SessionEnd, settled
from agentobs.redaction import redact
from agentobs.sink import Record, sink
from agentobs.world import World
from replay.diff import Difference, differences
from replay.divergence import (
    SHOWN,
    Divergence,
    DivergenceError,
    Kind,
    Progress,
    ReplayStopped,
    explain,
)
from replay.fixture import Ask, Fixture, RecordedTool
from replay.guard import no_network
from replay.lanes import Lane, Mismatch, value_of
from replay.step import Next, step_of
from replay.trajectory import trajectory

ToolPolicy = Literal["recorded", "live"] | Collection[str]
"""Which tools of the agent loop run: none, all, or those of these names."""


class Replay:
    """One replay of a fixture; a context manager."""

    def __init__(
        self, fixture: Fixture, *, tools: ToolPolicy = "recorded", network: bool = False
    ) -> None:
        """Prepare to answer from `fixture`; `network=True` lets connections of live tools out."""
        self.fixture = fixture
        self._records: list[tuple[Record, int | None]] = []
        self._numbers: dict[int, int] = {}
        self._policy = tools
        self._network = network
        self._lanes = {name: Lane(fixture, name) for name in fixture.lanes}
        self._tools = {(t.lane, t.question.tool_use_id): t for t in fixture.tools}
        self._tools_asked = 0
        self._live: set[str] = set()
        self._until: int | None = None
        self._captured: dict[str, Any] | None = None
        self._stopped = False
        self._divergence: Divergence | None = None
        self._stack: ExitStack | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Replay:
        """Start answering from the fixture."""
        with ExitStack() as stack:
            stack.enter_context(wire.answering(self._answer))
            stack.enter_context(sink.redirect(self._collect))
            stack.enter_context(world.transformed(self._world))
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

    def run(
        self,
        function: Callable[..., Any] | EllipsisType | None = None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run the agent as it was run when it was recorded, and return what it returns.

        Without a function this imports the recorded entry and calls it with the recorded arguments. An
        exception that the recording ended with, too, is part of the path and is not raised.

        Raises:
            DivergenceError: the path parts from the recorded one, or ends elsewhere.
            UsageError: the recording does not say how the agent is started.
        """
        call = self._entry(function, args, kwargs)
        try:
            result = call()
        except (DivergenceError, ReplayStopped):
            result = None
        except Exception as error:
            if (
                self._divergence is None
                and self.fixture.header.get("reason") != type(error).__name__
            ):
                raise
            result = None
        self.check()
        self._check_outcome()
        return result

    def until(
        self,
        function: Callable[..., Any] | EllipsisType | None = None,
        /,
        *args: Any,
        turn: int,
        **kwargs: Any,
    ) -> Next:
        """Replay up to the answer of a turn, let the agent go on, and return what it does next.

        The recorded answers lead up to and include that of turn `turn` of the main lane. The tools that it
        calls run live. The agent's next request is kept, not answered.

        Raises:
            DivergenceError: the path parts before that turn ends.
            UsageError: the recording has no such turn.
        """
        turns = [ask.turn for ask in self.fixture.asks if ask.lane == "main" and ask.turn]
        if turn not in turns:
            raise UsageError(
                f"the recording has no turn {turn}",
                where=str(self.fixture.path),
                todo=f"It has turns 1 to {max(turns, default=0)}",
            )
        self._until = turn
        call = self._entry(function, args, kwargs)
        error_name = None
        try:
            call()
        except (DivergenceError, ReplayStopped):
            pass
        except Exception as error:
            error_name = type(error).__name__
        self._raise_latched()
        return Next(self._now(error_name), self._recorded(turn))

    def check(self) -> None:
        """Raise the first divergence, or the requests that were recorded and never asked."""
        self._raise_latched()
        if self._stopped or self._until is not None:
            return
        for lane in self._lanes.values():
            if lane.left:
                raise DivergenceError(self._latch(self._missing(lane)))

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
        """How many of the recorded requests and tool calls were asked."""
        asked = sum(lane.asked for lane in self._lanes.values())
        return Progress(asked, len(self.fixture.asks), self._tools_asked, len(self.fixture.tools))

    def _answer(self, question: Question, place: Place) -> Answer:
        with self._lock:
            self._raise_latched()
            lane = self._lane(place.lane)
            if self._until is not None and lane.name == "main" and lane.turns >= self._until:
                self._stopped = True
                self._captured = self._captured or value_of(redact(question.body))
                raise ReplayStopped(f"replayed until turn {self._until}")
            taken = lane.take(question)
            if isinstance(taken, Mismatch):
                raise DivergenceError(self._latch(self._mismatch(lane, question, taken)))
            self._numbers[id(question.body)] = taken.number
            return _without_wait(taken.answer)

    def _world(self, live: World) -> World:
        return dataclasses.replace(live, run_tool=self._tool_runner(live), sleep=_no_wait)

    def _tool_runner(self, live: World) -> Any:
        async def run_tool(question: ToolQuestion) -> ToolAnswer:
            self._raise_latched()
            here = tracing.place()
            lane = here.lane if here else "main"
            recorded = self._tools.get((lane, question.tool_use_id))
            if self._runs_live(question, recorded):
                self._live.add(question.tool_use_id)
                self._tools_asked += recorded is not None
                return await live.run_tool(question)
            if recorded is None or not _same_call(recorded.question, question):
                raise DivergenceError(self._latch(self._tool_mismatch(lane, question, recorded)))
            self._tools_asked += 1
            return recorded.answer

        return run_tool

    def _runs_live(self, question: ToolQuestion, recorded: RecordedTool | None) -> bool:
        if self._until is not None:
            return recorded is None or (recorded.turn or 0) >= self._until
        if isinstance(self._policy, str):
            return self._policy == "live"
        return question.name in self._policy

    def _collect(self, record: Record) -> None:
        """Keep a record, but no body that the fixture has: those of 1,000 turns are a gigabyte."""
        number = None
        if isinstance(record, ModelExchange):
            number = self._numbers.pop(id(record.question.body), None)
            record = record if number is None else _with_body(record, b"")
        self._records.append((record, number))

    def _entry(
        self,
        function: Callable[..., Any] | EllipsisType | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Callable[[], Any]:
        if isinstance(function, EllipsisType):
            raise UsageError(
                "the test does not say how the agent is started",
                where=str(self.fixture.path),
                todo="Put the function that starts it, and its arguments, where the dots stand",
            )
        if function is None:
            function, kwargs = (
                _import_entry(self.fixture),
                {**(self.fixture.header["arguments"] or {}), **kwargs},
            )
        return lambda: _completed(function(*args, **kwargs))

    def _lane(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = Lane(self.fixture, name)
        return self._lanes[name]

    def _raise_latched(self) -> None:
        if self._divergence is not None:
            raise DivergenceError(self._divergence)

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
        new = value_of(redact(question.body))
        found = differences(_asked(missed.expected, old), _asked(question, new))
        why = explain(found[0] if found else None, new, frozenset(self._live))
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
        old, new = ({"name": q.name, "input": q.input} for q in (recorded.question, question))
        why = f"tool call {question.tool_use_id} reached the tool with something else than recorded"
        return self._report(
            "tool", self._lane(lane), "a tool call differs", differences(old, new), why
        )

    def _report(
        self,
        kind: Kind,
        lane: Lane,
        summary: str,
        found: list[Difference] | None = None,
        why: str = "",
    ) -> Divergence:
        due = next(iter(lane.due()), None)
        return Divergence(
            fixture=self.fixture.name,
            path=_short_path(self.fixture.path.parent),
            kind=kind,
            lane=lane.name,
            number=lane.asked + 1,
            of=len(lane.asks),
            turn=due.turn if due else None,
            summary=summary,
            differences=tuple((found or [])[:SHOWN]),
            more=max(len(found or []) - SHOWN, 0),
            why=why,
            progress=self.progress,
            never_asked=self._never_asked(due),
        )

    def _never_asked(self, due: Ask | None) -> str:
        left = sum(len(lane.left) for lane in self._lanes.values()) - (due is not None)
        tools = len(self.fixture.tools) - self._tools_asked
        if left <= 0 and tools <= 0:
            return ""
        parts = [_count(left, "recorded request")] if left > 0 else []
        parts += [_count(tools, "tool call")] if tools > 0 else []
        return f"{' and '.join(parts)} never asked"

    def _check_outcome(self) -> None:
        end, header = self._session_end(), self.fixture.header
        if end is None or header.get("outcome") not in ("completed", "failed"):
            return
        old = {"outcome": header["outcome"], "reason": header["reason"]}
        new = {"outcome": end.outcome, "reason": end.reason}
        if old != new:
            found = differences(old, new)
            why = "all requests and tool calls were the recorded ones; the agent judged them differently"
            summary = "the session ended differently"
            raise DivergenceError(
                self._latch(self._report("outcome", self._lane("main"), summary, found, why))
            )

    def _session_end(self) -> SessionEnd | None:
        ends = [record for record, _ in self._records if isinstance(record, SessionEnd)]
        last = [record for record, _ in self._records if isinstance(record, InteractionEnd)]
        return settled(ends[-1], last[-1] if last else None) if ends else None

    def _now(self, error_name: str | None) -> Any:
        end = self._session_end()
        if self._captured is not None:
            return step_of(self._captured)
        outcome = end.outcome if end else "failed" if error_name else "completed"
        return step_of(None, outcome, end.reason if end else error_name)

    def _recorded(self, turn: int) -> Any:
        later = [ask for ask in self.fixture.asks if ask.lane == "main" and (ask.turn or 0) > turn]
        if later:
            return step_of(value_of(self.fixture.body(later[0].number)))
        return step_of(None, self.fixture.header.get("outcome"), self.fixture.header.get("reason"))


def _with_body(exchange: ModelExchange, body: bytes) -> ModelExchange:
    question = dataclasses.replace(exchange.question, body=body)
    return dataclasses.replace(exchange, question=question)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _asked(question: Ask | Question, body: Any) -> Any:
    """Return what is compared of a question; the head joins the body only where it differs."""
    head = {"method": question.method, "path": question.path}
    meant = {
        k: v for k, v in question.headers.items() if k in ("anthropic-beta", "anthropic-version")
    }
    return (
        {**body, "(request)": {**head, **meant}}
        if isinstance(body, dict)
        else {"body": body, **head, **meant}
    )


def _same_call(recorded: ToolQuestion, came: ToolQuestion) -> bool:
    if recorded.name != came.name:
        return False
    old, new = canonical(recorded.input), canonical(came.input)
    return old == new or old == redact(new.encode("utf-8", "surrogatepass")).decode(
        "utf-8", "surrogatepass"
    )


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


def _completed(result: Any) -> Any:
    return asyncio.run(_await(result)) if inspect.isawaitable(result) else result


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _import_entry(fixture: Fixture) -> Callable[..., Any]:
    entry = fixture.header.get("entry")
    if not entry or fixture.header.get("arguments") is None:
        raise UsageError(
            "the recording does not say how the agent is started"
            if not entry
            else f"the arguments of {entry} were no JSON values and are not recorded",
            where=str(fixture.path),
            todo="Pass the function that starts it, such as replay.run(my_agent, 'prompt')",
        )
    module, _, qualified = str(entry).partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the recorded entry {entry} cannot be imported: {error}",
            where=str(fixture.path),
            todo="Run from the directory that holds it, or pass the function: replay.run(my_agent, ...)",
        ) from error
    return found  # type: ignore[no-any-return]  # whatever the recording names


def _short_path(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
