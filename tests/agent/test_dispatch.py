"""Dispatch: which tool calls run concurrently, and the outcome of each call."""

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
from agentobs.agent.tool_calls.dispatcher import PARALLEL_MAX, Dispatcher, Step
from agentobs.agent.tool_calls.plan import Crew
from agentobs.agent.tools.tool import Tool, tool
from agentobs.errors import ReplayEnd
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.records.exchanges import Place, ToolAnswer, ToolExchange, ToolQuestion
from agentobs.records.facts import SpanStart
from agentobs.records.labels import Label

from .agent_runs import ALLOW_ALL, SESSION, in_loop, of_kind, recorded, spans, ticking_world
from .provider import Provider

unused_provider = Provider([])


def questions(*names: str, **value: Any) -> list[ToolQuestion]:
    return [ToolQuestion(f"call_{n}", name, value) for n, name in enumerate(names, 1)]


def dispatcher(tools: Sequence[Tool], **world: Any) -> Dispatcher:
    here = ticking_world(unused_provider.client(), tools, **world)
    return Dispatcher(Crew(here, tools, ALLOW_ALL, Conversation()), tracing.place(), 1)


def dispatch_events(calls: Sequence[ToolQuestion], tools: Sequence[Tool]) -> list[Step]:
    async def collect() -> list[Step]:
        return [event async for event in dispatcher(tools).finish(calls, {})]

    return in_loop(collect())


def results_of(events: Sequence[Step]) -> list[tuple[ToolQuestion, ToolAnswer]]:
    return [(done.question, done.answer) for done in of_kind(events, ToolDone)]


def test_concurrent_results_keep_the_order_of_calls() -> None:
    """Results are in the order of the calls, even if the call that started last ends first."""
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

    calls = questions("first", "second")
    events = dispatch_events(calls, [first, second])
    assert of_kind(events, ToolDispatch) == [ToolDispatch(calls[0]), ToolDispatch(calls[1])]
    assert results_of(events) == [
        (calls[0], ToolAnswer("one")),
        (calls[1], ToolAnswer("two")),
    ]


def test_writing_calls_run_sequentially() -> None:
    """Calls of writing tools never overlap, and they start in order."""
    trail: list[str] = []

    @tool
    async def write(text: str = "") -> None:
        trail.append("in")
        await asyncio.sleep(0)
        trail.append("out")

    dispatch_events(questions("write", "write", "write"), [write])
    assert trail == ["in", "out"] * 3


def test_at_most_ten_calls_run_concurrently() -> None:
    """Of a batch with more than ten concurrent calls, at most ten run at any time."""
    running_calls, max_running = 0, 0

    @tool(read_only=True)
    async def read() -> None:
        nonlocal running_calls, max_running
        running_calls += 1
        max_running = max(max_running, running_calls)
        for _ in range(3):
            await asyncio.sleep(0)
        running_calls -= 1

    dispatch_events(questions(*["read"] * 25), [read])
    assert max_running == PARALLEL_MAX == 10


def test_context_variables_reach_tools() -> None:
    """A sync function in a thread sees the caller's context variables, and its place in the recording is inside the
    span of the tool.
    """
    variable = contextvars.ContextVar("variable", default="unset")
    places: list[Place | None] = []

    @tool
    def look() -> str:
        places.append(tracing.place())
        return variable.get()

    with recorded() as records:
        variable.set("set")
        events = dispatch_events(questions("look"), [look])
    exchanges = [r for r in records if isinstance(r, ToolExchange)]
    execution = next(r for r in records if isinstance(r, SpanStart) and r.name == "execution")
    assert [exchange.place.span_id for exchange in exchanges] == [execution.parent_span_id]
    assert places == [replace(exchange.place, span_id=execution.span_id) for exchange in exchanges]
    assert isinstance(events[-1], ToolDone)
    assert [(e.question, e.answer) for e in exchanges] == [(events[-1].question, ToolAnswer("set"))]
    assert spans(records) == [("tool", "look", None, "ok"), ("execution", "look", "tool", "ok")]


def test_a_tool_name_that_might_be_content_is_not_emitted() -> None:
    """If the name of a tool might contain content, the label of its span is a digest."""
    with recorded() as records:
        dispatch_events(questions("what the user said"), [])
    [start] = [record for record in records if isinstance(record, SpanStart)]
    assert not isinstance(start.label, Label)
    [interpreted] = Interpreter(bytes(32)).interpret(start).facts
    assert isinstance(interpreted.fact, SpanStart)
    assert str(interpreted.fact.label).startswith("digest:")


class Differs(anthropic.AnthropicError, ReplayEnd):
    """Simulates a replay that differs from its recording."""


def test_a_divergence_stops_the_batch() -> None:
    """A divergence stops the concurrent calls and propagates unchanged."""

    @tool(read_only=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    @tool(read_only=True)
    async def differs() -> None:
        raise Differs("the question differs")

    async def collect() -> list[tuple[str, str | None, str | None, str]]:
        running = dispatcher([wait, differs])
        with pytest.raises(Differs):
            async for _ in running.finish(questions("wait", "differs"), {}):
                pass
        await running.close()
        return spans(records)

    with recorded() as records:
        found = in_loop(collect())
    assert found == [
        ("tool", "wait", None, "cancelled"),
        ("tool", "differs", None, "error"),
        ("queued", "differs", "tool", "ok"),
        ("execution", "wait", "tool", "cancelled"),
        ("execution", "differs", "tool", "error"),
    ]
    assert not [r for r in records if isinstance(r, ToolExchange)]


def test_tool_exchanges_belong_to_their_session() -> None:
    """Every tool exchange belongs to the session and turn that dispatched the call."""

    @tool
    def look() -> None: ...

    with recorded() as records, tracing.at(Place(SESSION, "i" * 32, turn=4)):
        dispatch_events(questions("look"), [look])
    (exchange,) = [r for r in records if isinstance(r, ToolExchange)]
    assert (exchange.place.session_id, exchange.place.turn) == (SESSION, 4)


def test_concurrency_safety_is_decided_for_each_call() -> None:
    """A tool decides for each call whether it may run concurrently; any value except `True` means that it must not."""
    trail: list[str] = []

    def is_safe(arguments: dict[str, Any]) -> bool:
        return {"yes": True, "no": False}[arguments["word"]]  # raises a KeyError for other words

    @tool(concurrent=is_safe)
    async def step(word: str) -> None:
        trail.append("in")
        for _ in range(5):
            await asyncio.sleep(0)
        trail.append("out")

    words = ["yes", "yes", "no", "yes", "perhaps"]
    dispatch_events(
        [ToolQuestion(f"c{n}", "step", {"word": word}) for n, word in enumerate(words)], [step]
    )
    assert trail == ["in", "in", "out", "out", *["in", "out"] * 3]


def test_a_failing_shell_stops_its_siblings() -> None:
    """A failing call of a shell-like tool stops its concurrent calls; a failing call of a reader does not."""
    started = asyncio.Event()

    @tool(tool_class="shell", concurrent=True)
    async def shell(word: str) -> str:
        if word == "fail":
            await started.wait()
            raise RuntimeError("exit 1")
        started.set()
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
        return [answer.outcome for _, answer in results_of(dispatch_events(calls, [shell, read]))]

    assert outcomes("shell", "wait", "fail", "wait") == ["aborted", "failed", "aborted"]
    assert outcomes("read", "one", "fail", "two") == ["executed", "failed", "executed"]


def test_a_tool_is_found_by_its_alias() -> None:
    """A renamed tool runs under its former name, which is also recorded."""

    @tool(name="find_order", aliases=("lookup_order",))
    def find() -> str:
        return "found"

    with recorded() as records:
        assert [
            a.content for _, a in results_of(dispatch_events(questions("lookup_order"), [find]))
        ] == ["found"]
    assert [r.question.name for r in of_kind(records, ToolExchange)] == ["lookup_order"]
