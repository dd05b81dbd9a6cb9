"""Dispatch: which tool calls run in parallel, and the outcome of each."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anthropic
import pytest

from agentobs import tracing
from agentobs.agent.events import ToolDispatch, ToolDone
from agentobs.agent.state import Conversation
from agentobs.agent.tool_calls.dispatcher import TOGETHER, Dispatcher, Step
from agentobs.agent.tool_calls.plan import Crew
from agentobs.agent.tools.tool import Tool, tool
from agentobs.errors import ReplaySays
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.records.exchanges import Place, ToolAnswer, ToolExchange, ToolQuestion
from agentobs.records.facts import SpanStart
from agentobs.records.labels import Label

from .provider import Provider
from .scene import ANYTHING, SESSION, in_loop, of_kind, recorded, spans, ticking_world

nothing = Provider([])


def asked(*names: str, **value: Any) -> list[ToolQuestion]:
    return [ToolQuestion(f"call_{n}", name, value) for n, name in enumerate(names, 1)]


def dispatcher(tools: Sequence[Tool], **world: Any) -> Dispatcher:
    here = ticking_world(nothing.client(), tools, **world)
    return Dispatcher(Crew(here, tools, ANYTHING, Conversation()), tracing.place(), 1)


def done(calls: Sequence[ToolQuestion], tools: Sequence[Tool]) -> list[Step]:
    async def collect() -> list[Step]:
        return [event async for event in dispatcher(tools).finish(calls, {})]

    return in_loop(collect())


def ran(events: Sequence[Step]) -> list[tuple[ToolQuestion, ToolAnswer]]:
    return [(done.question, done.answer) for done in of_kind(events, ToolDone)]


def test_a_batch_overlaps_and_keeps_its_order() -> None:
    """Read-only calls wait for each other inside, which requires parallel execution; the last to start ends first."""
    both = threading.Barrier(2)
    second_is_done = threading.Event()

    @tool(read_only=True)
    def first() -> str:
        both.wait(10)
        second_is_done.wait(10)
        return "one"

    @tool(read_only=True)
    def second() -> str:
        both.wait(10)
        second_is_done.set()
        return "two"

    calls = asked("first", "second")
    events = done(calls, [first, second])
    assert of_kind(events, ToolDispatch) == [ToolDispatch(calls[0]), ToolDispatch(calls[1])]
    assert ran(events) == [
        (calls[0], ToolAnswer("one")),
        (calls[1], ToolAnswer("two")),
    ]


def test_calls_that_change_something_run_one_after_the_other() -> None:
    """No two calls of writing tools ever overlap, and they start in order."""
    trail: list[str] = []

    @tool
    async def write(text: str = "") -> None:
        trail.append("in")
        await asyncio.sleep(0)
        trail.append("out")

    done(asked("write", "write", "write"), [write])
    assert trail == ["in", "out"] * 3


def test_no_more_than_ten_run_at_once() -> None:
    """A long batch keeps at most ten calls open."""
    open_now, most = 0, 0

    @tool(read_only=True)
    async def read() -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(3):
            await asyncio.sleep(0)
        open_now -= 1

    done(asked(*["read"] * 25), [read])
    assert most == TOGETHER == 10


def test_context_reaches_tools() -> None:
    """Context variables reach sync functions in their thread; the place there is inside the tool's span."""
    variable = contextvars.ContextVar("variable", default="unset")
    places: list[Place | None] = []

    @tool
    def look() -> str:
        places.append(tracing.place())
        return variable.get()

    with recorded() as records:
        variable.set("set")
        events = done(asked("look"), [look])
    exchanges = [r for r in records if isinstance(r, ToolExchange)]
    inside = next(r for r in records if isinstance(r, SpanStart) and r.name == "execution")
    assert [exchange.place.span_id for exchange in exchanges] == [inside.parent_span_id]
    assert places == [replace(exchange.place, span_id=inside.span_id) for exchange in exchanges]
    assert isinstance(events[-1], ToolDone)
    assert [(e.question, e.answer) for e in exchanges] == [(events[-1].question, ToolAnswer("set"))]
    assert spans(records) == [("tool", "look", None, "ok"), ("execution", "look", "tool", "ok")]


def test_a_name_that_is_no_label_is_not_told() -> None:
    """A tool name that might contain content is not a label of its span: the recorder replaces it with a digest."""
    with recorded() as records:
        done(asked("what the user said"), [])
    [start] = [record for record in records if isinstance(record, SpanStart)]
    assert not isinstance(start.label, Label)
    [told] = Interpreter(bytes(32)).interpret(start).told
    assert isinstance(told.fact, SpanStart)
    assert str(told.fact.label).startswith("digest:")


class Differs(anthropic.AnthropicError, ReplaySays):
    """Simulates a replay that differs from its recording."""


def test_what_is_not_the_tools_fault_stops_the_batch() -> None:
    """A divergence propagates unchanged out of the dispatch, after the parallel calls were stopped."""

    @tool(read_only=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    @tool(read_only=True)
    async def differs() -> None:
        raise Differs("the question differs")

    async def collect() -> list[tuple[str, str | None, str | None, str]]:
        running = dispatcher([wait, differs])
        with pytest.raises(Differs):
            async for _ in running.finish(asked("wait", "differs"), {}):
                pass
        await running.close()
        return spans(records)

    with recorded() as records:
        told = in_loop(collect())
    assert told == [
        ("tool", "wait", None, "cancelled"),
        ("tool", "differs", None, "error"),
        ("queued", "differs", "tool", "ok"),
        ("execution", "wait", "tool", "cancelled"),
        ("execution", "differs", "tool", "error"),
    ]
    assert not [r for r in records if isinstance(r, ToolExchange)]


def test_a_place_carries_the_session() -> None:
    """Every exchange of a tool belongs to the session and turn that dispatched it."""

    @tool
    def look() -> None: ...

    with recorded() as records, tracing.at(Place(SESSION, "i" * 32, turn=4)):
        done(asked("look"), [look])
    (exchange,) = [r for r in records if isinstance(r, ToolExchange)]
    assert (exchange.place.session_id, exchange.place.turn) == (SESSION, 4)


def test_safety_is_decided_for_each_call() -> None:
    """A tool decides for each call whether it may run in parallel; every result except a plain yes is no."""
    trail: list[str] = []

    def is_safe(arguments: dict[str, Any]) -> bool:
        return {"yes": True, "no": False}[arguments["word"]]  # raises for any other word

    @tool(concurrent=is_safe)
    async def step(word: str) -> None:
        trail.append("in")
        for _ in range(5):
            await asyncio.sleep(0)
        trail.append("out")

    words = ["yes", "yes", "no", "yes", "perhaps"]
    done([ToolQuestion(f"c{n}", "step", {"word": word}) for n, word in enumerate(words)], [step])
    assert trail == ["in", "in", "out", "out", *["in", "out"] * 3]


def test_a_failing_shell_stops_its_siblings() -> None:
    """If a call of a shell-like tool fails, parallel calls are stopped; a failing reader stops none."""
    begun = asyncio.Event()

    @tool(tool_class="shell", concurrent=True)
    async def shell(word: str) -> str:
        if word == "fail":
            await begun.wait()
            raise RuntimeError("exit 1")
        begun.set()
        await asyncio.Event().wait()
        return ""

    @tool(read_only=True)
    async def read(word: str) -> str:
        if word == "fail":
            raise RuntimeError("no such file")
        await asyncio.sleep(0.01)
        return word

    def outcomes(name: str, *words: str) -> list[str]:
        calls = [ToolQuestion(f"c{n}", name, {"word": word}) for n, word in enumerate(words)]
        return [answer.outcome for _, answer in ran(done(calls, [shell, read]))]

    assert outcomes("shell", "wait", "fail", "wait") == ["aborted", "failed", "aborted"]
    assert outcomes("read", "one", "fail", "two") == ["executed", "failed", "executed"]


def test_an_alias_finds_its_tool() -> None:
    """A renamed tool still runs under its former name, which is recorded."""

    @tool(name="find_order", aliases=("lookup_order",))
    def find() -> str:
        return "found"

    with recorded() as records:
        assert [a.content for _, a in ran(done(asked("lookup_order"), [find]))] == ["found"]
    assert [r.question.name for r in of_kind(records, ToolExchange)] == ["lookup_order"]
