"""Events of background agents arrive while the agents run, in the stream of the run and at a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs import tracing
from agentobs.agent import (
    AgentDefinition,
    BackgroundResult,
    Conversation,
    Event,
    Permissions,
    Result,
    Rule,
    SubAgent,
    ToolDispatch,
    ToolDone,
    finish,
    run,
    sub_agents,
    tool,
)
from agentobs.agent.background_events import EVENTS_MAX, BackgroundEvents
from agentobs.agent.execution.live_answers import Consent
from agentobs.recording.journal.home import existing_home
from tests.agentobs_warnings import own_warnings
from tests.dashboards.live_app import serving
from tests.exporters.sample_agents import recording
from tests.held_requests import hold

from .agent_runs import of_kind, options, recorded, result_of, ticking_world
from .provider import MODEL, Provider, call, message, streamed, text

DONE = message(text("Done."))
START = sub_agents([AgentDefinition("scout", "Looks around.")])
SCOUT_LOOKS = message(call("c", "look", where="box"), stop_reason="tool_use")
STARTS = call("a", "agent", agent="scout", prompt="Go.", run_in_background=True)


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def inner(events: Sequence[Event], kind: type) -> list[Any]:
    """Return the events of one kind in background agents."""
    return [e.event for e in of_kind(events, SubAgent) if type(e.event) is kind]


async def collect(running: Any, on: Any = lambda events: None) -> list[Event]:
    """Read a run to its end; `on` is called with all events so far after each event."""
    events: list[Event] = []
    async with aclosing(running) as each_event:
        async for event in each_event:
            events.append(event)
            on(events)
    return events


def test_events_arrive_while_a_tool_of_the_main_agent_runs() -> None:
    """A tool that ends only after the consumer has seen the background agent's result does not wait forever."""
    seen = asyncio.Event()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait until the consumer has seen the end of the background agent."""
        await seen.wait()
        return "seen"

    def on(events: list[Event]) -> None:
        if inner(events, Result):
            seen.set()

    async def main(provider: Provider) -> list[Event]:
        async with provider.client() as client:
            tools = (look, wait, START)
            world = ticking_world(client, tools)
            return await collect(run("Hi", world=world, options=options(), tools=tools), on)

    replies = [message(STARTS, call("b", "wait")), SCOUT_LOOKS, DONE, DONE]
    with Provider([streamed(each) for each in replies]) as provider, recorded():
        events = asyncio.run(asyncio.wait_for(main(provider), 30))
    waited = next(
        at for at, e in enumerate(events) if type(e) is ToolDone and e.question.name == "wait"
    )
    assert [d.question.name for d in inner(events[:waited], ToolDispatch)] == ["look"]
    assert len(inner(events[:waited], Result)) == 1
    assert len(inner(events, Result)) == 1
    [entered] = of_kind(events, BackgroundResult)
    assert events.index(entered) > waited
    assert result_of(events).subtype == "success"


def test_events_arrive_during_an_approval_wait() -> None:
    """While a person has not answered, the events of a background agent are yielded."""
    seen = asyncio.Event()

    @tool(concurrent=True)
    def put(what: str) -> str:
        """Put something."""
        return f"put {what}"

    async def person(consent: Consent) -> bool:
        await seen.wait()
        return True

    def on(events: list[Event]) -> None:
        if inner(events, Result):
            seen.set()

    async def main(provider: Provider) -> list[Event]:
        async with provider.client() as client:
            tools = (put, look, START)
            world = ticking_world(client, tools, person=person)
            asked = Permissions(rules=(Rule("ask", "put", None, "user"),))
            chosen = options(permissions=asked)
            return await collect(run("Hi", world=world, options=chosen, tools=tools), on)

    replies = [message(STARTS, call("b", "put", what="x")), SCOUT_LOOKS, DONE, DONE]
    with Provider([streamed(each) for each in replies]) as provider:
        events = asyncio.run(asyncio.wait_for(main(provider), 30))
    put_done = [e.answer.outcome for e in of_kind(events, ToolDone) if e.question.name == "put"]
    assert put_done == ["executed"]
    assert len(inner(events, Result)) == 1


def play_two_runs(listener: Any) -> tuple[list[list[Event]], list[Event], Conversation]:
    """Run a prompt, let the background agent work without a run, and run another prompt.

    Return the events of both runs, and what the listener got between them.
    """
    conversation = Conversation()
    between: list[Event] = []

    def receive(event: SubAgent) -> None:
        between.append(event)
        listener(event)

    conversation.background_events.listener = receive

    async def main(provider: Provider) -> list[list[Event]]:
        async with provider.client() as client:
            ended = asyncio.Event()
            hold(client, lambda lane: lane != "main", ended)
            world = ticking_world(client, (look,))
            found = []
            for prompt in ("Hello", "And now?"):
                running = run(
                    prompt,
                    world=world,
                    options=options(),
                    tools=(look, START),
                    conversation=conversation,
                )
                found.append(await collect(running))
                ended.set()
                await finish(conversation)
            return found

    replies = [message(STARTS), DONE, SCOUT_LOOKS, DONE, DONE]
    with Provider([streamed(each) for each in replies]) as provider, recorded():
        return asyncio.run(asyncio.wait_for(main(provider), 30)), between, conversation


def test_a_listener_gets_events_between_runs() -> None:
    """The listener gets every event once, although no run is in progress; the next run yields the same events."""
    (first, second), between, conversation = play_two_runs(lambda event: None)
    assert not inner(first, ToolDispatch)
    assert [d.question.name for d in inner(between, ToolDispatch)] == ["look"]
    assert between == [*of_kind(first, SubAgent), *of_kind(second, SubAgent)]
    assert len(inner(between, Result)) == 1
    result_at = next(i for i, e in enumerate(second) if isinstance(e, BackgroundResult))
    assert inner(second[:result_at], Result)
    assert len(conversation.background_events) == 0


def test_a_listener_that_fails_does_not_stop_the_agent(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A failing listener is removed with one warning; the events still arrive in the next run."""

    def fail(event: SubAgent) -> None:
        raise LookupError("not mine")

    (_, second), between, conversation = play_two_runs(fail)
    assert len(between) == 1
    assert conversation.background_events.listener is None
    assert len(inner(second, Result)) == 1
    [warning] = own_warnings(recwarn)
    assert "a listener of background agents failed: LookupError" in warning


def test_an_agent_object_passes_its_listener_on() -> None:
    """The listener of an `agentobs.Agent` gets the events of its background agents, even after the run has ended."""
    got: list[SubAgent] = []

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            ended = asyncio.Event()
            hold(client, lambda lane: lane != "main", ended)
            made = agentobs.Agent(
                client,
                options=options(model=MODEL),
                tools=[look],
                sub_agents=[AgentDefinition("scout", "Looks around.")],
                background_listener=got.append,
            )
            assert (await made.run("Hello")).subtype == "success"
            assert not inner(got, ToolDispatch)
            ended.set()
            await finish(made.conversation)

    replies = [message(STARTS), DONE, SCOUT_LOOKS, DONE]
    with Provider([streamed(each) for each in replies]) as provider:
        asyncio.run(asyncio.wait_for(main(provider), 30))
    assert [d.question.name for d in inner(got, ToolDispatch)] == ["look"]
    assert len(inner(got, Result)) == 1


def test_waiting_events_are_bounded() -> None:
    """If the events are not consumed, the oldest are dropped."""

    async def main() -> list[str]:
        events = BackgroundEvents()
        for number in range(EVENTS_MAX + 3):
            events.put(SubAgent("a", "scout", str(number), 1, result))
        return [each.lane for each in events.take()]

    result = inner(play_two_runs(lambda event: None)[1], Result)[0]
    kept = asyncio.run(main())
    assert (len(kept), kept[0]) == (EVENTS_MAX, "3")


@pytest.mark.slow
def test_live_pages_show_a_background_agent_while_it_works(tmp_path: Path) -> None:
    """After the main agent has ended, the page of the session shows each request of a background agent that is still
    running.
    """
    home = tmp_path / "home"

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            first, rest = asyncio.Event(), asyncio.Event()
            requests = iter((first, rest))

            async def wait(request: Any) -> None:
                here = tracing.place()
                if here is not None and here.lane != "main":
                    await next(requests).wait()

            client._client.event_hooks["request"].append(wait)
            agentobs.record(client)
            conversation, seen = Conversation(), asyncio.Event()
            conversation.background_events.listener = lambda event: (
                seen.set() if isinstance(event.event, ToolDone) else None
            )
            world = ticking_world(client, (look,))
            running = run(
                "Hi",
                world=world,
                options=options(),
                tools=(look, START),
                conversation=conversation,
            )
            assert result_of(await collect(running)).subtype == "success"
            place = tracing.place()
            assert place is not None
            first.set()
            await seen.wait()
            assert agentobs.flush(30)
            with serving(existing_home(home)) as page:
                shown = page.get(f"/sessions/{place.session_id}")
            assert 'title="main/a' in shown.html
            assert "interaction 2 scout running" in shown.words
            assert "look" in shown.words
            rest.set()
            await finish(conversation)

    replies = [message(STARTS), DONE, SCOUT_LOOKS, DONE]
    with recording(home), Provider([streamed(each) for each in replies]) as provider:
        with agentobs.session("watched"):
            asyncio.run(asyncio.wait_for(main(provider), 60))
