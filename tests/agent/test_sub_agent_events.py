"""Events of sub-agents are yielded while their starter waits; and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest

from agentobs.agent import (
    Abort,
    Agent,
    BackgroundResult,
    Conversation,
    Event,
    Permissions,
    Result,
    Rule,
    SubAgent,
    TextDelta,
    finish,
    run,
    sub_agents,
    tool,
)
from agentobs.agent.execution.live_answers import Consent
from agentobs.agent.hooks import Hook, table
from agentobs.agent.tool_calls.sub_agent_events import WAITING_MAX
from agentobs.records.exchanges import WorldQuestion
from agentobs.world import World
from tests.holding import hold

from .provider import Provider, Reply, call, message, streamed, text
from .scene import of_kind, options, recorded, result_of, ticking_world

DONE = message(text("Done."))
START = sub_agents([Agent("scout", "Looks around.")])
CAREFUL = Permissions(rules=(Rule("ask", "put", None, "user"),))


@tool(concurrent=True)
def put(what: str) -> str:
    """Put something."""
    return f"put {what}"


@tool(read_only=True)
async def work() -> str:
    """Work for ever."""
    await asyncio.Event().wait()
    return ""


TOOLS = (put, work, START)
SENT = message(
    call("a", "agent", agent="scout", prompt="Go."),
    call("b", "put", what="x"),
    stop_reason="tool_use",
)
LEAVES = message(
    call("a", "agent", agent="scout", prompt="Go.", run_in_background=True),
    call("b", "put", what="x"),
)


def wordy() -> Reply:
    """A response with more chunks than the event queue holds."""
    sent = streamed(message(text("x" * 40)))
    pieces = (*sent.pieces[:3], *(sent.pieces[3:4] * (2 * WAITING_MAX)), *sent.pieces[4:])
    return Reply(pieces, headers=sent.headers)


@pytest.mark.parametrize("who", ["person", "pre_tool_use", "permission_denied"])
def test_events_rise_while_somebody_is_asked(who: str) -> None:
    """A person or a hook answers only after the parallel agent has ended: its events are yielded meanwhile."""
    ended = asyncio.Event()

    async def person(consent: Consent) -> bool:
        if who == "person":
            await ended.wait()
        return who == "person"

    async def hooks(question: WorldQuestion) -> Any:
        await ended.wait()
        return {"outcome": "success"}

    async def go(provider: Provider) -> list[Event]:
        events = []
        fired = () if who == "person" else table([Hook(who, print, when="put", name="slow")])  # type: ignore[arg-type]
        async with provider.client() as client:
            world = ticking_world(client, TOOLS, person=person, hooks=hooks)
            chosen = options(permissions=CAREFUL, hooks=fired)
            async for event in run("Go", world=world, options=chosen, tools=TOOLS):
                events.append(event)
                if isinstance(event, SubAgent) and isinstance(event.event, Result):
                    ended.set()
        return events

    with Provider([streamed(SENT), wordy(), streamed(DONE)]) as provider:
        events = asyncio.run(asyncio.wait_for(go(provider), 20))
    own = [type(e).__name__ for e in events if not isinstance(e, SubAgent)]
    assert own[-1] == "Result"
    assert result_of(events).subtype == "success"
    heard = [e.event for e in of_kind(events, SubAgent) if isinstance(e.event, TextDelta)]
    assert len(heard) >= 2 * WAITING_MAX


@pytest.mark.parametrize("how", ["abort", "leave", "cancel"])
def test_nothing_is_left_while_a_person_is_asked(how: str) -> None:
    """Stopped, left or cancelled there: the approval request is withdrawn, and no task continues."""
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def person(consent: Consent) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return True

    async def listen(world: World, abort: Abort) -> None:
        chosen = options(permissions=CAREFUL)
        async with aclosing(run("Go", world=world, options=chosen, tools=TOOLS)) as events:
            async for event in events:
                if asked.is_set() and isinstance(event, SubAgent):
                    abort.stop()
                    if how == "leave":
                        return

    async def go(provider: Provider) -> set[asyncio.Task[Any]]:
        abort = Abort() if how == "abort" else NoAbort()
        async with provider.client() as client:
            hold(client, lambda lane: lane != "main", asked)
            world = ticking_world(client, TOOLS, person=person, abort=abort)
            listening = asyncio.create_task(listen(world, abort))
            if how == "cancel":
                await asked.wait()
                listening.cancel()
            await asyncio.wait({listening}, timeout=20)
            assert listening.done()
        return asyncio.all_tasks() - {asyncio.current_task()}

    with Provider([streamed(SENT), streamed(message(call("c", "work")))]) as provider, recorded():
        assert asyncio.run(go(provider)) == set()
    assert withdrawn.is_set()


class NoAbort(Abort):
    """An abort that has no effect."""

    def stop(self) -> None:
        """Do nothing."""


def test_waits_for_an_abort_leave_no_tasks() -> None:
    """A loop that ends right after a run with waiting agents destroys no task, at any depth."""
    told: list[str] = []

    async def go(provider: Provider) -> None:
        client = provider.client()
        world = ticking_world(client, TOOLS)
        async for _ in run("Go", world=world, options=options(), tools=TOOLS):
            pass

    starts = [message(call(n, "agent", agent="scout", prompt="Go.")) for n in "abc"]
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
    with Provider([streamed(each) for each in (*starts, DONE, DONE, DONE, DONE)]) as provider:
        loop.run_until_complete(go(provider))
    assert asyncio.all_tasks(loop) == set()
    loop.close()
    gc.collect()
    assert told == []


def test_an_abort_wakes_those_that_wait_under_it() -> None:
    """At any depth; stopping a child wakes no parent, and nothing waits forever."""

    async def go() -> tuple[bool, bool]:
        above = Abort()
        below = above.under().under()
        waits = [asyncio.create_task(each.wait()) for each in (above, below)]
        await asyncio.sleep(0)
        below.stop()
        await asyncio.wait_for(waits[1], 5)
        alone = not waits[0].done()
        above.stop()
        await asyncio.wait_for(asyncio.gather(waits[0], above.under().wait()), 5)
        return alone, bool(above._waiting or below._waiting)

    assert asyncio.run(go()) == (True, False)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "at rest"])
def test_background_work_of_another_event_loop(is_closed: bool) -> None:
    """Work left by one loop is a partial failure in the next: it is reported with the partial result, and removed."""
    talk = Conversation()
    replies = [LEAVES, DONE, DONE]

    async def go(provider: Provider, prompt: str) -> list[Event]:
        async with provider.client() as client:
            hold(client, lambda lane: lane != "main", asyncio.Event())
            world = ticking_world(client, TOOLS)
            running = run(prompt, world=world, options=options(), tools=TOOLS, conversation=talk)
            return [event async for event in running]

    first = asyncio.new_event_loop()
    with Provider([streamed(each) for each in replies]) as provider, recorded():
        first.run_until_complete(go(provider, "Go"))
        [left] = talk.background.values()
        if is_closed:
            left.task.cancel()
            first.run_until_complete(asyncio.wait({left.task}))
            first.close()
        asyncio.run(asyncio.wait_for(finish(talk), 20))
        events = asyncio.run(asyncio.wait_for(go(provider, "And now?"), 20))
        if not is_closed:
            first.run_until_complete(asyncio.wait({left.task}, timeout=20))
            assert left.task.done()  # it was told to stop
            first.close()
    assert [e.subtype for e in of_kind(events, BackgroundResult)] == ["error_during_execution"]
    assert result_of(events).subtype == "success"
    said = provider.requests[-1]["messages"][-1]["content"][-1]["text"]
    assert "it was left before its end" in said
    assert not talk.background
    assert "a" not in talk.children
