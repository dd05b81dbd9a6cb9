"""Events of sub-agents are yielded while the agent that started them waits, and no task is left behind."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import pytest

from agentobs.agent import (
    Abort,
    AgentDefinition,
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
from tests.held_requests import hold

from .agent_runs import of_kind, options, recorded, result_of, ticking_world
from .provider import Provider, Reply, call, message, streamed, text

DONE = message(text("Done."))
START = sub_agents([AgentDefinition("scout", "Looks around.")])
ASK_FOR_PUT = Permissions(rules=(Rule("ask", "put", None, "user"),))


@tool(concurrent=True)
def put(what: str) -> str:
    """Put something."""
    return f"put {what}"


@tool(read_only=True)
async def work() -> str:
    """Work forever."""
    await asyncio.Event().wait()
    return ""


TOOLS = (put, work, START)
STARTS_AND_PUTS = message(
    call("a", "agent", agent="scout", prompt="Go."),
    call("b", "put", what="x"),
    stop_reason="tool_use",
)
STARTS_IN_BACKGROUND = message(
    call("a", "agent", agent="scout", prompt="Go.", run_in_background=True),
    call("b", "put", what="x"),
)


def long_response() -> Reply:
    """Return a response with more chunks than the event queue holds."""
    sent = streamed(message(text("x" * 40)))
    chunks = (*sent.chunks[:3], *(sent.chunks[3:4] * (2 * WAITING_MAX)), *sent.chunks[4:])
    return Reply(chunks, headers=sent.headers)


@pytest.mark.parametrize("decider", ["person", "pre_tool_use", "permission_denied"])
def test_events_are_yielded_during_an_approval_wait(decider: str) -> None:
    """While a person or a hook has not answered, the events of a concurrent sub-agent are yielded."""
    ended = asyncio.Event()

    async def person(consent: Consent) -> bool:
        if decider == "person":
            await ended.wait()
        return decider == "person"

    async def hooks(question: WorldQuestion) -> Any:
        await ended.wait()
        return {"outcome": "success"}

    async def run_agent(provider: Provider) -> list[Event]:
        events = []
        hook_event: Any = decider
        fired = (
            table([Hook(hook_event, print, when="put", name="slow")]) if decider != "person" else ()
        )
        async with provider.client() as client:
            world = ticking_world(client, TOOLS, person=person, hooks=hooks)
            chosen = options(permissions=ASK_FOR_PUT, hooks=fired)
            async for event in run("Go", world=world, options=chosen, tools=TOOLS):
                events.append(event)
                if isinstance(event, SubAgent) and isinstance(event.event, Result):
                    ended.set()
        return events

    with Provider([streamed(STARTS_AND_PUTS), long_response(), streamed(DONE)]) as provider:
        events = asyncio.run(asyncio.wait_for(run_agent(provider), 20))
    own = [type(e).__name__ for e in events if not isinstance(e, SubAgent)]
    assert own[-1] == "Result"
    assert result_of(events).subtype == "success"
    deltas = [e.event for e in of_kind(events, SubAgent) if isinstance(e.event, TextDelta)]
    assert len(deltas) >= 2 * WAITING_MAX


@pytest.mark.parametrize("ending", ["abort", "leave", "cancel"])
def test_no_task_is_left_after_an_approval_wait(ending: str) -> None:
    """If the run is stopped, closed or cancelled during an approval wait, the approval request is withdrawn, and no
    task continues.
    """
    is_requested, withdrawn = asyncio.Event(), asyncio.Event()

    async def person(consent: Consent) -> bool:
        is_requested.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return True

    async def listen(world: World, abort: Abort) -> None:
        chosen = options(permissions=ASK_FOR_PUT)
        async with aclosing(run("Go", world=world, options=chosen, tools=TOOLS)) as events:
            async for event in events:
                if is_requested.is_set() and isinstance(event, SubAgent):
                    abort.stop()
                    if ending == "leave":
                        return

    async def run_agent(provider: Provider) -> set[asyncio.Task[Any]]:
        abort = Abort() if ending == "abort" else NoAbort()
        async with provider.client() as client:
            hold(client, lambda lane: lane != "main", is_requested)
            world = ticking_world(client, TOOLS, person=person, abort=abort)
            listening = asyncio.create_task(listen(world, abort))
            if ending == "cancel":
                await is_requested.wait()
                listening.cancel()
            await asyncio.wait({listening}, timeout=20)
            assert listening.done()
        return asyncio.all_tasks() - {asyncio.current_task()}

    with (
        Provider([streamed(STARTS_AND_PUTS), streamed(message(call("c", "work")))]) as provider,
        recorded(),
    ):
        assert asyncio.run(run_agent(provider)) == set()
    assert withdrawn.is_set()


class NoAbort(Abort):
    """An `Abort` whose `stop` has no effect."""

    def stop(self) -> None:
        """Do nothing."""


@pytest.mark.slow
def test_abort_waits_leave_no_tasks() -> None:
    """An event loop that ends right after a run with sub-agents at any depth destroys no pending task."""
    errors: list[str] = []

    async def run_agent(provider: Provider) -> None:
        client = provider.client()
        world = ticking_world(client, TOOLS)
        async for _ in run("Go", world=world, options=options(), tools=TOOLS):
            pass

    starts = [message(call(n, "agent", agent="scout", prompt="Go.")) for n in "abc"]
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: errors.append(context["message"]))
    with Provider([streamed(each) for each in (*starts, DONE, DONE, DONE, DONE)]) as provider:
        loop.run_until_complete(run_agent(provider))
    assert asyncio.all_tasks(loop) == set()
    loop.close()
    gc.collect()
    assert errors == []


def test_an_abort_wakes_waits_of_its_children() -> None:
    """An abort wakes the waits of its children at any depth, and an abort of a child does not stop its parent."""

    async def wait_for_aborts() -> tuple[bool, bool]:
        parent = Abort()
        grandchild = parent.child().child()
        waits = [asyncio.create_task(each.wait()) for each in (parent, grandchild)]
        await asyncio.sleep(0)
        grandchild.stop()
        await asyncio.wait_for(waits[1], 5)
        is_parent_waiting = not waits[0].done()
        parent.stop()
        await asyncio.wait_for(asyncio.gather(waits[0], parent.child().wait()), 5)
        return is_parent_waiting, bool(parent._waiting or grandchild._waiting)

    assert asyncio.run(wait_for_aborts()) == (True, False)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "at rest"])
def test_background_work_of_another_event_loop(is_closed: bool) -> None:
    """If the event loop of a background agent ended, the next loop reports the agent as a partial failure and removes
    it.
    """
    conversation = Conversation()
    replies = [STARTS_IN_BACKGROUND, DONE, DONE]

    async def run_agent(provider: Provider, prompt: str) -> list[Event]:
        async with provider.client() as client:
            hold(client, lambda lane: lane != "main", asyncio.Event())
            world = ticking_world(client, TOOLS)
            running = run(
                prompt, world=world, options=options(), tools=TOOLS, conversation=conversation
            )
            return [event async for event in running]

    first = asyncio.new_event_loop()
    with Provider([streamed(each) for each in replies]) as provider, recorded():
        first.run_until_complete(run_agent(provider, "Go"))
        [left] = conversation.background.values()
        if is_closed:
            left.task.cancel()
            first.run_until_complete(asyncio.wait({left.task}))
            first.close()
        asyncio.run(asyncio.wait_for(finish(conversation), 20))
        events = asyncio.run(asyncio.wait_for(run_agent(provider, "And now?"), 20))
        if not is_closed:
            first.run_until_complete(asyncio.wait({left.task}, timeout=20))
            assert left.task.done()  # the next loop has cancelled the task
            first.close()
    assert [e.subtype for e in of_kind(events, BackgroundResult)] == ["error_during_execution"]
    assert result_of(events).subtype == "success"
    report = provider.requests[-1]["messages"][-1]["content"][-1]["text"]
    assert "it was abandoned before it ended" in report
    assert not conversation.background
    assert "a" not in conversation.children
