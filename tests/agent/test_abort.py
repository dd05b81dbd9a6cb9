"""Stopping a run: during a stream, before its tools, while they run, or while a question is pending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from agentobs.agent.budget import Budget
from agentobs.agent.events import (
    Event,
    Message,
    Permission,
    RequestStart,
    TextDelta,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.execution.live_answers import Consent
from agentobs.agent.loop import complete
from agentobs.agent.permissions import Permissions
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool
from agentobs.provider.anthropic.messages import fault
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ToolExchange, WorldExchange
from agentobs.records.facts import InteractionEnd
from agentobs.world import Abort
from tests.provider_script import script
from tests.provider_script import streamed as sent
from tests.provider_script import text as words

from .provider import Provider, call, error, message, streamed, text, whole
from .scene import (
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def stopping_at(abort: Abort, kind: type, nth: int = 1) -> Any:
    """Stop the run at the nth event of a kind."""
    seen: list[Event] = []

    def on(event: Event) -> None:
        if isinstance(event, kind):
            seen.append(event)
            if len(seen) == nth:
                abort.stop()

    return on


def outcomes(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(d.question.tool_use_id, d.answer.outcome) for d in of_kind(events, ToolDone)]


def stops(records: Sequence[Any]) -> list[tuple[str, Any]]:
    """The recorded points at which the run was stopped."""
    asked = [r for r in of_kind(records, WorldExchange) if r.question.kind == "abort"]
    return [(exchange.question.key, exchange.answer) for exchange in asked]


def goes_on(talk: Conversation, provider: Provider) -> None:
    """The provider accepts the stopped conversation with a new prompt."""
    assert fault([*talk.messages, {"role": "user", "content": "Go on"}]) is None
    result = result_of(events_of(provider, "Go on", conversation=talk))
    assert (result.subtype, result.text) == ("success", "Done.")


def test_in_the_middle_of_a_stream() -> None:
    """Partial content stays in the conversation as far as the provider accepts it; the result says so."""
    abort, talk = Abort(), Conversation()
    answer = message(
        {"type": "thinking", "thinking": "Hm, well", "signature": "c2lnbmVkIQ=="},
        text("Hello you"),
    )
    with Provider([streamed(answer), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider, conversation=talk, world={"abort": abort}, on=stopping_at(abort, TextDelta)
        )
        result = result_of(events)
        assert (result.subtype, result.terminal_reason) == (
            "error_during_execution",
            "aborted_streaming",
        )
        assert (result.error, result.num_turns) == (None, 0)
        assert talk.messages[-1] == {
            "role": "assistant",
            "content": [answer["content"][0], text("Hell")],
        }
        goes_on(talk, provider)
    assert stops(records) == [("1:streaming:1", {"count": 9})]
    assert spans(records)[:2] == [
        ("interaction", "main", None, "ok"),
        ("llm_request", "claude-test-1", "interaction", "cancelled"),
    ]
    ends = of_kind(records, InteractionEnd)
    assert (ends[0].result, ends[0].is_error) == ("cancelled", False)
    assert (result.cost_status, list(result.usage)) == ("unknown_model", ["claude-test-1"])


def test_while_nothing_comes() -> None:
    """An abort from another thread interrupts the wait for the next chunk."""
    abort, hold, talk = Abort(), threading.Event(), Conversation()

    def on(event: Event) -> None:
        if isinstance(event, TextDelta):
            threading.Timer(0.05, abort.stop).start()

    held = streamed(message(text("Hello")), hold=hold)
    with Provider([held, streamed(DONE)]) as provider:
        events = events_of(provider, conversation=talk, world={"abort": abort}, on=on)
        hold.set()
        assert result_of(events).terminal_reason == "aborted_streaming"
        goes_on(talk, provider)


def test_before_the_answer_begins() -> None:
    """If nothing arrived at all, the prompt stays, and the next one follows it."""
    abort, hold, talk = Abort(), threading.Event(), Conversation()

    def on(event: Event) -> None:
        if isinstance(event, RequestStart):
            threading.Timer(0.1, abort.stop).start()

    held = streamed(message(), hold=hold)
    silent = type(held)((b": nothing\n\n", b"\n"), headers=held.headers, hold=hold)
    with Provider([silent, streamed(DONE)]) as provider, recorded() as records:
        events = events_of(provider, conversation=talk, world={"abort": abort}, on=on)
        hold.set()
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert [m["role"] for m in talk.messages] == ["user"]
        goes_on(talk, provider)
    assert stops(records) == [("1:streaming:1", {"count": 0})]
    assert [m["content"] for m in provider.requests[1]["messages"]] == ["Hello", "Go on"]


def test_between_the_answer_and_its_tools() -> None:
    """No tool starts any more, and each call has an error as its result."""
    abort, talk = Abort(), Conversation()
    asking = message(call("a", "write"), call("b", "write"))

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    with Provider([streamed(asking), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[write],
            conversation=talk,
            world={"abort": abort},
            on=stopping_at(abort, Message),
        )
        assert outcomes(events) == [("a", "aborted"), ("b", "aborted")]
        assert result_of(events).terminal_reason == "aborted_tools"
        goes_on(talk, provider)
    assert stops(records) == [("1:dispatch", {"count": 0})]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_among_the_tools(kind: str) -> None:
    """Running tools are stopped, pending ones never start, and finished ones keep their results."""
    abort, talk, stopped = Abort(), Conversation(), threading.Event()

    async def wait_in_loop() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    def wait_in_thread() -> str:
        stopped.wait(10)
        return "too late"

    waiting = tool(name="wait")(wait_in_loop if kind == "async" else wait_in_thread)
    asking = message(
        call("a", "look", where="box"), call("b", "wait"), call("c", "look", where="bag")
    )

    def on(event: Event) -> None:
        if isinstance(event, ToolDispatch) and event.question.name == "wait":
            threading.Timer(0.05, abort.stop).start()

    with Provider([streamed(asking), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider, tools=[look, waiting], conversation=talk, world={"abort": abort}, on=on
        )
        stopped.set()
        assert outcomes(events) == [("a", "executed"), ("b", "aborted"), ("c", "aborted")]
        assert result_of(events).terminal_reason == "aborted_tools"
        goes_on(talk, provider)
    assert stops(records) == [("1:tools", {"count": 2})]
    assert [e.answer.outcome for e in of_kind(records, ToolExchange)] == [
        "executed",
        "aborted",
        "aborted",
    ]


def test_a_tool_that_must_not_be_interrupted() -> None:
    """A tool whose interrupt setting is `block` runs to its end before the run ends."""
    abort, talk = Abort(), Conversation()

    @tool(interrupt="block")
    async def commit() -> str:
        """Commit."""
        abort.stop()
        await asyncio.sleep(0.05)
        return "committed"

    asking = message(call("a", "commit"), call("b", "commit"))
    with Provider([streamed(asking), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[commit], conversation=talk, world={"abort": abort})
        assert outcomes(events) == [("a", "executed"), ("b", "aborted")]
        goes_on(talk, provider)


def test_mid_stream_with_a_tool_that_had_begun() -> None:
    """A call that started while the response was arriving is stopped with it, and has its result."""
    abort, talk = Abort(), Conversation()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    asking = message(call("a", "wait"), text("Meanwhile"))
    with Provider([streamed(asking), streamed(DONE)]) as provider:
        events = events_of(
            provider,
            tools=[wait],
            conversation=talk,
            world={"abort": abort},
            on=stopping_at(abort, TextDelta),
        )
        assert outcomes(events) == [("a", "aborted")]
        assert result_of(events).terminal_reason == "aborted_streaming"
        goes_on(talk, provider)


def test_while_a_person_is_asked() -> None:
    """An abort does not wait for the user; the call's result is that it was stopped."""
    abort, talk = Abort(), Conversation()

    async def person(consent: Consent) -> bool:
        abort.stop()
        await asyncio.Event().wait()
        return True

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    asking = message(call("a", "write"))
    with Provider([streamed(asking), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[write],
            conversation=talk,
            permissions=Permissions(),
            world={"abort": abort, "person": person},
        )
        assert outcomes(events) == [("a", "aborted")]
        assert len(of_kind(events, Permission)) == 1
        goes_on(talk, provider)
    assert stops(records) == [("1:consent:a", {"count": 0})]


def test_while_the_loop_waits_for_a_retry() -> None:
    """An abort interrupts the backoff before the next attempt."""
    abort = Abort()
    abort_in_wait = [error(529, "overloaded_error"), whole(DONE)]
    with Provider(abort_in_wait) as provider, recorded() as records:
        events = events_of(
            provider,
            world={"abort": abort},
            on=lambda event: abort.stop() if type(event).__name__ == "Retry" else None,
        )
    assert (result_of(events).terminal_reason, len(provider.requests)) == ("aborted_streaming", 1)
    assert stops(records) == [("1:waiting:1", {"count": 0})]


def test_before_the_request_goes_out() -> None:
    """A run that is already stopped sends no request; after the abort is cleared, the next run continues."""
    abort, talk = Abort(), Conversation()
    with Provider([streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            conversation=talk,
            world={"abort": abort},
            on=stopping_at(abort, RequestStart),
        )
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert provider.requests == []
        abort.clear()
        goes_on(talk, provider)
    assert stops(records) == [("1:unsent:1", {"count": 0})]


def test_no_call_begins_after_the_abort() -> None:
    """Neither during a slow check, nor between the decision and the execution, nor later in a batch."""
    ran: list[str] = []

    async def slowly(what: str) -> None:
        if what == "slow":
            await asyncio.Event().wait()

    @tool(check=slowly, concurrent=True)
    async def destroy(what: str) -> str:
        """Destroy something."""
        ran.append(what)
        await asyncio.Event().wait()
        return ""

    def run(kind: type, *whats: str, soon: bool = False) -> list[tuple[str, str]]:
        abort, seen = Abort(), list[Event]()

        def on(event: Event) -> None:
            if isinstance(event, kind) and not seen:
                seen.append(event)
                threading.Timer(0.05, abort.stop).start() if soon else abort.stop()

        asking = message(*(call(what, "destroy", what=what) for what in whats))
        with Provider([streamed(asking)]) as provider:
            events = events_of(provider, tools=[destroy], world={"abort": abort}, on=on)
        assert result_of(events).terminal_reason == "aborted_tools"
        return outcomes(events)

    assert run(Message, "slow", soon=True) == [("slow", "invalid")]
    assert run(Permission, "x", "y") == [("x", "aborted"), ("y", "aborted")]
    assert ran == []
    assert run(ToolDispatch, "x", "y", "z") == [(each, "aborted") for each in "xyz"]
    assert set(ran) <= {"x"}


def test_while_a_person_in_a_thread_is_asked() -> None:
    """A sync function that never returns delays neither the run nor the end of the event loop."""
    abort, asked, release = Abort(), threading.Event(), threading.Event()

    def person(consent: Consent) -> bool:
        asked.set()
        release.wait(60)
        return True

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    def stop() -> None:
        asked.wait(10)
        abort.stop()

    threading.Thread(target=stop, daemon=True).start()
    with Provider([streamed(message(call("a", "write")))]) as provider:
        events = events_of(
            provider,
            tools=[write],
            permissions=Permissions(),
            world={"abort": abort, "person": person},
        )
    assert not release.is_set()
    release.set()
    assert outcomes(events) == [("a", "aborted")]


def test_while_the_world_is_asked() -> None:
    """A question that hangs at the start of a turn (tool availability, spending) is also cancelled."""
    abort, asked, release = Abort(), threading.Event(), threading.Event()

    def hang() -> Any:
        asked.set()
        release.wait(60)

    def stop() -> None:
        asked.wait(10)
        abort.stop()

    @tool(available=hang, optional=True)
    def search() -> str:
        """Search."""
        return ""

    for tools, world, budget in (
        ([search], {}, Budget()),
        ([], {"spent_today": hang}, Budget(day_usd=Decimal(1))),
    ):
        asked.clear()
        abort.clear()
        threading.Thread(target=stop, daemon=True).start()
        with Provider([]) as provider, recorded() as records:
            events = events_of(
                provider, tools=tools, budget=budget, world={"abort": abort, **world}
            )
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert stops(records) == [("1:beginning", {"count": 0})]
        assert provider.requests == []
    release.set()


def test_while_a_person_is_asked_about_money() -> None:
    """The approval is missing because of the abort, so the run does not end at its budget."""
    abort = Abort()

    async def person(consent: Consent) -> bool:
        abort.stop()
        await asyncio.Event().wait()
        return True

    budget = Budget(interaction_usd=Decimal(0), at_limit="ask")
    with Provider([]) as provider:
        events = events_of(provider, budget=budget, world={"abort": abort, "person": person})
    assert result_of(events).terminal_reason == "aborted_streaming"


def test_in_a_task_that_once_swallowed_a_cancellation() -> None:
    """An abort is distinguished from earlier cancellations that the caller suppressed."""

    async def stop(provider: Provider) -> Any:
        abort = Abort()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        async with provider.client() as client:
            world = ticking_world(client, abort=abort)
            asyncio.get_running_loop().call_later(0.2, abort.stop)
            return await complete("Hello", world=world, options=options())

    hold = threading.Event()
    with Provider([streamed(message(text("Hello")), hold=hold)]) as provider:
        result = in_loop(stop(provider))
        hold.set()
    assert result.terminal_reason == "aborted_streaming"


@pytest.mark.parametrize("point", ["stream", "tools"])
def test_a_stopped_conversation_resumes_at_the_emulated_provider(point: str) -> None:
    """`agentobs serve`, as strict as the real provider, accepts the conversation and responds."""
    abort, talk = Abort(), Conversation()
    asking = message(call("a", "look", where="box"), text("and"), call("b", "look", where="bag"))
    kind = TextDelta if point == "stream" else Message
    with Provider([streamed(asking)]) as provider:
        events_of(
            provider,
            tools=[look],
            conversation=talk,
            world={"abort": abort},
            on=stopping_at(abort, kind),
        )

    async def resume() -> Any:
        served = script(sent(words("Done.")))
        strict = ServeOptions(match="order", strict=True)
        with ServedProvider(served, strict) as emulated:
            async with AsyncAnthropic(api_key="made-up", base_url=emulated.url) as client:
                world = ticking_world(client)
                return await complete("Go on", world=world, options=options(), conversation=talk)

    result = in_loop(resume())
    assert (result.subtype, result.text) == ("success", "Done.")
