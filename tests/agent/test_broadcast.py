"""Several consumers, slow consumers, and consumers that modify events."""

from __future__ import annotations

import asyncio
from typing import Any

from agentobs.agent.broadcast import Broadcast, Missed
from agentobs.agent.events import Event, Message, Result, TextDelta, ToolDispatch, ToolDone
from agentobs.agent.loop import run
from agentobs.agent.tools.tool import declared, tool
from agentobs.records.canonical_json import Json

from .provider import Provider, call, message, streamed, text
from .scene import events_of, in_loop, options, ticking_world

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def broadcast(provider: Provider, *capacities: int) -> tuple[list[list[Any]], Result | None]:
    """Run with consumers that only read at the end, except the first."""

    async def listen() -> tuple[list[list[Any]], Result | None]:
        async with provider.client() as client:
            world = ticking_world(client, [look])
            told = Broadcast(run("Hello", world=world, options=options(), tools=[look]))
            heard = [told.listen(capacity) for capacity in capacities]
            result = await told.drive()
            return [[event async for event in events] for events in heard], result

    return in_loop(listen())


def test_several_consumers() -> None:
    """Each receives everything, in order, as its own copies."""
    asking = message(call("a", "look", where="box"))
    with Provider([streamed(asking), streamed(DONE)]) as provider:
        (first, second), result = broadcast(provider, 100, 100)
    assert first == second
    assert first[-1] == result
    mine, theirs = (
        e for events in (first, second) for e in events if isinstance(e, Message) and e.turn == 1
    )
    assert mine is not theirs
    assert mine.message is not theirs.message


def test_a_slow_consumer_loses_what_does_not_fit() -> None:
    """It is told how much it missed, keeps the newest events, and always gets the result."""
    with Provider([streamed(message(text("Hello you")))]) as provider:
        (slow, fast), result = broadcast(provider, 2, 100)
    assert slow == [Missed(len(fast) - 2), *fast[-2:]]
    assert slow[-1] == result
    assert isinstance(slow[-1], Result)


def test_what_the_run_raises_ends_the_listening() -> None:
    """A cancelled driver ends its consumers; none waits forever."""

    async def listen() -> list[Any]:
        with Provider([streamed(DONE)]) as provider:
            async with provider.client() as client:
                told = Broadcast(run("Hello", world=ticking_world(client), options=options()))
                heard = told.listen()
                driving = asyncio.create_task(told.drive())
                first = await anext(heard)
                driving.cancel()
                return [first, *[event async for event in heard]]

    events = asyncio.run(asyncio.wait_for(listen(), 10))
    assert not any(isinstance(event, Result) for event in events)


def test_changing_an_event_changes_no_request() -> None:
    """Consumers may modify events: requests, results and records are not affected."""

    def spoil(event: Event) -> None:
        match event:
            case Message():
                event.message["content"].clear()
            case ToolDispatch() | ToolDone():
                event.question.input["where"] = "spoilt"
                if isinstance(event, ToolDone):
                    event.answer.content[0]["text"] = "spoilt"
            case _:
                pass

    def find(value: Json) -> list[Json]:
        where = value.pop("where")  # a tool may also modify its input
        return [{"type": "text", "text": f"nothing in {where}"}]

    finder = declared({"name": "find", "input_schema": {"type": "object"}}, find, read_only=True)
    asking = message(call("a", "find", where="box"))
    with Provider([streamed(asking), streamed(DONE)]) as provider:
        events_of(provider, tools=[finder], on=spoil)
    assert provider.requests[1]["messages"][1]["content"] == asking["content"]
    assert provider.requests[1]["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [text("nothing in box")]}
    ]


def test_deltas_come_as_they_come() -> None:
    """A fast consumer receives deltas before the response is complete."""

    async def listen() -> list[Any]:
        with Provider([streamed(message(text("Hello you")))]) as provider:
            async with provider.client() as client:
                told = Broadcast(run("Hello", world=ticking_world(client), options=options()))
                heard = told.listen(1)
                driving = asyncio.create_task(told.drive())
                kinds = [type(event) async for event in heard]
                await driving
                return kinds

    assert TextDelta in asyncio.run(listen())


def test_who_comes_late_hears_the_result() -> None:
    """No consumer waits for a run that has ended."""

    async def listen() -> list[Any]:
        with Provider([streamed(DONE)]) as provider:
            async with provider.client() as client:
                told = Broadcast(run("Hello", world=ticking_world(client), options=options()))
                result = await told.drive()
                assert [event async for event in told.listen()] == [result]
                return [event async for event in told.listen(1)]

    assert len(asyncio.run(asyncio.wait_for(listen(), 10))) == 1
