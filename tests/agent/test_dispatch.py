"""Dispatch: which tool calls run together, and what becomes of each."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Sequence
from typing import Any

import anthropic
import httpx2
import pytest

from agentobs import tracing
from agentobs.agent.dispatch import TOGETHER, batches, dispatch
from agentobs.agent.events import ToolDispatch, ToolDone
from agentobs.agent.execution import live_tools
from agentobs.agent.tools import Tool, tool
from agentobs.records.exchanges import Place, ToolAnswer, ToolExchange, ToolQuestion

from .provider import Provider
from .scene import SESSION, in_loop, recorded, spans, ticking_world

nothing = Provider([])


def asked(*names: str, **value: Any) -> list[ToolQuestion]:
    return [ToolQuestion(f"call_{n}", name, value) for n, name in enumerate(names, 1)]


def done(calls: Sequence[ToolQuestion], tools: Sequence[Tool]) -> list[ToolDispatch | ToolDone]:
    async def collect() -> list[ToolDispatch | ToolDone]:
        world = ticking_world(nothing.client(), tools)
        return [event async for event in dispatch(calls, tools, world, tracing.place())]

    return in_loop(collect())


def answer(question: ToolQuestion, *tools: Tool) -> ToolAnswer:
    async def ask() -> ToolAnswer:
        return await live_tools(tools)(question)

    return in_loop(ask())


def test_neighbours_that_read_run_together() -> None:
    """Consecutive read-only calls form one batch; every other call, unknown ones too, is a batch of its own."""
    calls = asked("read", "list", "write", "write", "read", "unknown", "list", "read")
    split = batches(calls, frozenset({"read", "list"}))
    assert [[q.name for q in batch] for batch in split] == [
        ["read", "list"],
        ["write"],
        ["write"],
        ["read"],
        ["unknown"],
        ["list", "read"],
    ]


def test_a_batch_overlaps_and_keeps_its_order() -> None:
    """Read-only calls wait for each other inside, which only works together; the last to start ends first."""
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
    assert events[:2] == [ToolDispatch(calls[0]), ToolDispatch(calls[1])]
    assert [(e.question, e.answer) for e in events[2:] if isinstance(e, ToolDone)] == [
        (calls[0], ToolAnswer("one")),
        (calls[1], ToolAnswer("two")),
    ]


def test_calls_that_change_something_run_one_after_the_other() -> None:
    """No two calls of tools that are not read-only are ever open at once, and they start in order."""
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


def test_a_tool_that_does_not_exist() -> None:
    """An unknown tool is answered with the names that there are."""

    @tool
    def look() -> None: ...

    assert answer(ToolQuestion("c", "lock", {}), look) == ToolAnswer(
        "There is no tool named 'lock'. The tools are: look.", is_error=True, outcome="unknown"
    )


def test_input_that_does_not_fit() -> None:
    """Invalid input is answered with what to mend, and the function is not called."""

    @tool
    def look(where: str) -> None:
        raise AssertionError("must not run")

    assert answer(ToolQuestion("c", "look", {"were": 1}), look) == ToolAnswer(
        "The input of look does not fit:\n"
        "where: Field required\n"
        "were: Extra inputs are not permitted",
        is_error=True,
        outcome="invalid",
    )


def test_a_tool_that_raises() -> None:
    """An exception becomes an error that names it; so does an error of the provider inside a tool."""

    @tool
    def look() -> None:
        raise FileNotFoundError("no such file: a.txt")

    @tool
    def ask() -> None:
        raise anthropic.APITimeoutError(httpx2.Request("POST", "http://localhost"))

    assert answer(ToolQuestion("c", "ask", {}), ask).outcome == "failed"
    assert answer(ToolQuestion("c", "look", {}), look) == ToolAnswer(
        "look failed with FileNotFoundError: no such file: a.txt", is_error=True, outcome="failed"
    )


def test_a_tool_that_is_too_slow() -> None:
    """A tool is given up after its time; a TimeoutError of its own is a failure like any other."""

    @tool(timeout_s=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    @tool
    async def own() -> None:
        raise TimeoutError("the host is slow")

    assert answer(ToolQuestion("c", "wait", {}), wait) == ToolAnswer(
        "wait did not finish within 0.01 seconds and was given up.",
        is_error=True,
        outcome="timeout",
    )
    assert answer(ToolQuestion("c", "own", {}), own) == ToolAnswer(
        "own failed with TimeoutError: the host is slow", is_error=True, outcome="failed"
    )


def test_context_reaches_tools() -> None:
    """Context variables reach plain functions in their thread; the place there is inside the tool's span."""
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
    assert places == [exchange.place for exchange in exchanges]
    assert isinstance(events[-1], ToolDone)
    assert exchanges == [
        ToolExchange(places[0] or Place(""), 1, 1, events[-1].question, ToolAnswer("set"))
    ]
    assert spans(records) == [("tool", "look", None, "ok")]


def test_a_name_that_is_no_label_is_not_told() -> None:
    """A tool name that might hold content does not become the label of its span."""
    with recorded() as records:
        done(asked("what the user said"), [])
    assert spans(records) == [("tool", None, None, "ok")]


class Differs(anthropic.AnthropicError):
    """Stands for a replay that differs from its recording."""


def test_what_is_not_the_tools_fault_stops_the_batch() -> None:
    """An error that is nobody's failure leaves the dispatch as it is, after its neighbours were stopped."""

    @tool(read_only=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    @tool(read_only=True)
    async def differs() -> None:
        raise Differs("the question differs")

    async def collect() -> list[tuple[str, str | None, str | None, str]]:
        tools = [wait, differs]
        world = ticking_world(nothing.client(), tools)
        with pytest.raises(Differs):
            async for _ in dispatch(asked("wait", "differs"), tools, world, tracing.place()):
                pass
        return spans(records)

    with recorded() as records:
        told = in_loop(collect())
    assert told == [
        ("tool", "wait", None, "cancelled"),
        ("tool", "differs", None, "error"),
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
