"""Several consumers, slow consumers, and consumers that modify events."""

from __future__ import annotations

import asyncio
from typing import Any

from agentobs.agent.broadcast import Broadcast, Missed
from agentobs.agent.events import Event, Message, TextDelta, ToolDispatch, ToolDone
from agentobs.agent.loop import run
from agentobs.agent.run_result import Result
from agentobs.agent.tools.tool import declared, tool
from agentobs.records.canonical_json import Json

from .agent_runs import events_of, in_loop, options, ticking_world
from .provider import Provider, call, message, streamed, text

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def run_with_consumers(
    provider: Provider, *capacities: int
) -> tuple[list[list[Any]], Result | None]:
    """Run an agent with one consumer per capacity; return the events that each consumer reads after the run, and the
    result.
    """

    async def listen() -> tuple[list[list[Any]], Result | None]:
        async with provider.client() as client:
            world = ticking_world(client, [look])
            broadcast = Broadcast(run("Hello", world=world, options=options(), tools=[look]))
            consumers = [broadcast.listen(capacity) for capacity in capacities]
            result = await broadcast.drive()
            return [[event async for event in events] for events in consumers], result

    return in_loop(listen())


def test_several_consumers() -> None:
    """Each consumer receives its own copies of all events, in order."""
    call_message = message(call("a", "look", where="box"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        (first, second), result = run_with_consumers(provider, 100, 100)
    assert first == second
    assert first[-1] == result
    first_copy, second_copy = (
        e for events in (first, second) for e in events if isinstance(e, Message) and e.turn == 1
    )
    assert first_copy is not second_copy
    assert first_copy.message is not second_copy.message


def test_a_slow_consumer_loses_old_events() -> None:
    """A slow consumer gets the number of lost events, then the newest events, which always include the result."""
    with Provider([streamed(message(text("Hello you")))]) as provider:
        (slow, fast), result = run_with_consumers(provider, 2, 100)
    assert slow == [Missed(len(fast) - 2), *fast[-2:]]
    assert slow[-1] == result
    assert isinstance(slow[-1], Result)


def test_a_cancelled_run_ends_its_consumers() -> None:
    """If the task that drives the run is cancelled, no consumer waits forever."""

    async def listen() -> list[Any]:
        with Provider([streamed(DONE)]) as provider:
            async with provider.client() as client:
                broadcast = Broadcast(run("Hello", world=ticking_world(client), options=options()))
                consumer = broadcast.listen()
                driving = asyncio.create_task(broadcast.drive())
                first = await anext(consumer)
                driving.cancel()
                return [first, *[event async for event in consumer]]

    events = asyncio.run(asyncio.wait_for(listen(), 10))
    assert not any(isinstance(event, Result) for event in events)


def test_modified_events_do_not_affect_the_run() -> None:
    """If a consumer modifies an event, requests, results and records stay the same."""

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
    call_message = message(call("a", "find", where="box"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events_of(provider, tools=[finder], on=spoil)
    assert provider.requests[1]["messages"][1]["content"] == call_message["content"]
    assert provider.requests[1]["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a", "content": [text("nothing in box")]}
    ]


def test_deltas_are_delivered_during_the_response() -> None:
    """A fast consumer receives the deltas before the response is complete."""

    async def listen() -> list[Any]:
        with Provider([streamed(message(text("Hello you")))]) as provider:
            async with provider.client() as client:
                broadcast = Broadcast(run("Hello", world=ticking_world(client), options=options()))
                consumer = broadcast.listen(1)
                driving = asyncio.create_task(broadcast.drive())
                kinds = [type(event) async for event in consumer]
                await driving
                return kinds

    assert TextDelta in asyncio.run(listen())


def test_a_late_consumer_gets_the_result() -> None:
    """A consumer that starts after the end of the run gets the result instead of waiting."""

    async def listen() -> list[Any]:
        with Provider([streamed(DONE)]) as provider:
            async with provider.client() as client:
                broadcast = Broadcast(run("Hello", world=ticking_world(client), options=options()))
                result = await broadcast.drive()
                assert [event async for event in broadcast.listen()] == [result]
                return [event async for event in broadcast.listen(1)]

    assert len(asyncio.run(asyncio.wait_for(listen(), 10))) == 1
