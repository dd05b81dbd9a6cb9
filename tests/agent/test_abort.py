"""Stopping a run: during a stream, before its tools, while tools run, or while the world has not answered a
question.
"""

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
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ToolExchange, WorldExchange
from agentobs.records.facts import InteractionEnd
from agentobs.world import Abort
from tests.provider_script import script
from tests.provider_script import streamed as sent
from tests.provider_script import text as words

from .agent_runs import (
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)
from .provider import Provider, call, error, message, streamed, text, unstreamed

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def stopping_at(abort: Abort, kind: type, nth: int = 1) -> Any:
    """Return an event handler that stops the run at the nth event of a kind."""
    seen: list[Event] = []

    def on(event: Event) -> None:
        if isinstance(event, kind):
            seen.append(event)
            if len(seen) == nth:
                abort.stop()

    return on


def outcomes(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(d.question.tool_use_id, d.answer.outcome) for d in of_kind(events, ToolDone)]


def stop_points(records: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the recorded points at which the run was stopped."""
    exchanges = [r for r in of_kind(records, WorldExchange) if r.question.kind == "abort"]
    return [(exchange.question.key, exchange.answer) for exchange in exchanges]


def check_continuation(conversation: Conversation, provider: Provider) -> None:
    """Check that the provider accepts the stopped conversation when a new prompt continues it."""
    assert (
        conversation_error([*conversation.messages, {"role": "user", "content": "Go on"}]) is None
    )
    result = result_of(events_of(provider, "Go on", conversation=conversation))
    assert (result.subtype, result.text) == ("success", "Done.")


def test_abort_during_a_stream() -> None:
    """If a run is stopped during a stream, the conversation keeps partial content that the provider accepts, and the
    result reports the abort.
    """
    abort, conversation = Abort(), Conversation()
    answer = message(
        {"type": "thinking", "thinking": "Hm, well", "signature": "c2lnbmVkIQ=="},
        text("Hello you"),
    )
    with Provider([streamed(answer), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            conversation=conversation,
            world={"abort": abort},
            on=stopping_at(abort, TextDelta),
        )
        result = result_of(events)
        assert (result.subtype, result.terminal_reason) == (
            "error_during_execution",
            "aborted_streaming",
        )
        assert (result.error, result.num_turns) == (None, 0)
        assert conversation.messages[-1] == {
            "role": "assistant",
            "content": [answer["content"][0], text("Hell")],
        }
        check_continuation(conversation, provider)
    assert stop_points(records) == [("1:streaming:1", {"count": 9})]
    assert spans(records)[:2] == [
        ("interaction", "main", None, "ok"),
        ("llm_request", "claude-test-1", "interaction", "cancelled"),
    ]
    ends = of_kind(records, InteractionEnd)
    assert (ends[0].result, ends[0].is_error) == ("cancelled", False)
    assert (result.cost_status, list(result.usage)) == ("unknown_model", ["claude-test-1"])


def test_abort_during_a_silent_stream() -> None:
    """An abort from another thread interrupts the wait for the next chunk of a stream."""
    abort, hold, conversation = Abort(), threading.Event(), Conversation()

    def on(event: Event) -> None:
        if isinstance(event, TextDelta):
            threading.Timer(0.05, abort.stop).start()

    paused = streamed(message(text("Hello")), hold=hold)
    with Provider([paused, streamed(DONE)]) as provider:
        events = events_of(provider, conversation=conversation, world={"abort": abort}, on=on)
        hold.set()
        assert result_of(events).terminal_reason == "aborted_streaming"
        check_continuation(conversation, provider)


def test_abort_before_the_response_starts() -> None:
    """If a run is stopped before any part of the response arrived, the prompt is kept, and the next prompt
    follows it.
    """
    abort, hold, conversation = Abort(), threading.Event(), Conversation()

    def on(event: Event) -> None:
        if isinstance(event, RequestStart):
            threading.Timer(0.1, abort.stop).start()

    paused = streamed(message(), hold=hold)
    silent = type(paused)((b": nothing\n\n", b"\n"), headers=paused.headers, hold=hold)
    with Provider([silent, streamed(DONE)]) as provider, recorded() as records:
        events = events_of(provider, conversation=conversation, world={"abort": abort}, on=on)
        hold.set()
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert [m["role"] for m in conversation.messages] == ["user"]
        check_continuation(conversation, provider)
    assert stop_points(records) == [("1:streaming:1", {"count": 0})]
    assert [m["content"] for m in provider.requests[1]["messages"]] == ["Hello", "Go on"]


def test_abort_between_the_response_and_its_tools() -> None:
    """If a run is stopped between a response and its tools, no tool starts, and each call gets an error as its
    result.
    """
    abort, conversation = Abort(), Conversation()
    call_message = message(call("a", "write"), call("b", "write"))

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("the tool ran")

    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[write],
            conversation=conversation,
            world={"abort": abort},
            on=stopping_at(abort, Message),
        )
        assert outcomes(events) == [("a", "aborted"), ("b", "aborted")]
        assert result_of(events).terminal_reason == "aborted_tools"
        check_continuation(conversation, provider)
    assert stop_points(records) == [("1:dispatch", {"count": 0})]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_abort_while_tools_run(kind: str) -> None:
    """If a run is stopped while tools run, running tools are stopped, pending tools never start, and finished tools
    keep their results.
    """
    abort, conversation, stopped = Abort(), Conversation(), threading.Event()

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
    call_message = message(
        call("a", "look", where="box"), call("b", "wait"), call("c", "look", where="bag")
    )

    def on(event: Event) -> None:
        if isinstance(event, ToolDispatch) and event.question.name == "wait":
            threading.Timer(0.05, abort.stop).start()

    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[look, waiting],
            conversation=conversation,
            world={"abort": abort},
            on=on,
        )
        stopped.set()
        assert outcomes(events) == [("a", "executed"), ("b", "aborted"), ("c", "aborted")]
        assert result_of(events).terminal_reason == "aborted_tools"
        check_continuation(conversation, provider)
    assert stop_points(records) == [("1:tools", {"count": 2})]
    assert [e.answer.outcome for e in of_kind(records, ToolExchange)] == [
        "executed",
        "aborted",
        "aborted",
    ]


def test_abort_while_a_tool_runs_that_must_not_be_interrupted() -> None:
    """If a run is stopped while a tool runs whose interrupt setting is `block`, the tool finishes before the
    run ends.
    """
    abort, conversation = Abort(), Conversation()

    @tool(interrupt="block")
    async def commit() -> str:
        """Commit."""
        abort.stop()
        await asyncio.sleep(0.05)
        return "committed"

    call_message = message(call("a", "commit"), call("b", "commit"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[commit], conversation=conversation, world={"abort": abort}
        )
        assert outcomes(events) == [("a", "executed"), ("b", "aborted")]
        check_continuation(conversation, provider)


def test_abort_during_a_stream_with_a_started_tool() -> None:
    """If a run is stopped during a stream, a call that has already started is also stopped, and gets a result."""
    abort, conversation = Abort(), Conversation()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    call_message = message(call("a", "wait"), text("Meanwhile"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(
            provider,
            tools=[wait],
            conversation=conversation,
            world={"abort": abort},
            on=stopping_at(abort, TextDelta),
        )
        assert outcomes(events) == [("a", "aborted")]
        assert result_of(events).terminal_reason == "aborted_streaming"
        check_continuation(conversation, provider)


def test_abort_during_an_approval_wait() -> None:
    """An abort ends an approval wait immediately, and the result of the call states that the call was stopped."""
    abort, conversation = Abort(), Conversation()

    async def person(consent: Consent) -> bool:
        abort.stop()
        await asyncio.Event().wait()
        return True

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("the tool ran")

    call_message = message(call("a", "write"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[write],
            conversation=conversation,
            permissions=Permissions(),
            world={"abort": abort, "person": person},
        )
        assert outcomes(events) == [("a", "aborted")]
        assert len(of_kind(events, Permission)) == 1
        check_continuation(conversation, provider)
    assert stop_points(records) == [("1:consent:a", {"count": 0})]


def test_abort_during_a_retry_wait() -> None:
    """An abort interrupts the backoff before the next attempt."""
    abort = Abort()
    abort_in_wait = [error(529, "overloaded_error"), unstreamed(DONE)]
    with Provider(abort_in_wait) as provider, recorded() as records:
        events = events_of(
            provider,
            world={"abort": abort},
            on=lambda event: abort.stop() if type(event).__name__ == "Retry" else None,
        )
    assert (result_of(events).terminal_reason, len(provider.requests)) == ("aborted_streaming", 1)
    assert stop_points(records) == [("1:waiting:1", {"count": 0})]


def test_abort_before_a_request_is_sent() -> None:
    """A run that is stopped before its first request sends none; after the abort is cleared, the next run continues."""
    abort, conversation = Abort(), Conversation()
    with Provider([streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            conversation=conversation,
            world={"abort": abort},
            on=stopping_at(abort, RequestStart),
        )
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert provider.requests == []
        abort.clear()
        check_continuation(conversation, provider)
    assert stop_points(records) == [("1:unsent:1", {"count": 0})]


def test_no_call_starts_after_the_abort() -> None:
    """After an abort, no call starts: neither during a slow check, nor between its decision and its execution, nor
    later in a batch.
    """
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

    def run(kind: type, *inputs: str, soon: bool = False) -> list[tuple[str, str]]:
        abort, seen = Abort(), list[Event]()

        def on(event: Event) -> None:
            if isinstance(event, kind) and not seen:
                seen.append(event)
                threading.Timer(0.05, abort.stop).start() if soon else abort.stop()

        call_message = message(*(call(what, "destroy", what=what) for what in inputs))
        with Provider([streamed(call_message)]) as provider:
            events = events_of(provider, tools=[destroy], world={"abort": abort}, on=on)
        assert result_of(events).terminal_reason == "aborted_tools"
        return outcomes(events)

    assert run(Message, "slow", soon=True) == [("slow", "invalid")]
    assert run(Permission, "x", "y") == [("x", "aborted"), ("y", "aborted")]
    assert ran == []
    assert run(ToolDispatch, "x", "y", "z") == [(each, "aborted") for each in "xyz"]
    assert set(ran) <= {"x"}


def test_abort_during_an_approval_wait_in_a_thread() -> None:
    """If a sync approval function never returns, an abort still ends the run and the event loop without delay."""
    abort, is_requested, release = Abort(), threading.Event(), threading.Event()

    def person(consent: Consent) -> bool:
        is_requested.set()
        release.wait(60)
        return True

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("the tool ran")

    def stop() -> None:
        is_requested.wait(10)
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


def test_abort_during_a_question_to_the_world() -> None:
    """An abort also cancels a question that hangs at the start of a turn, about tool availability or spending."""
    abort, is_requested, release = Abort(), threading.Event(), threading.Event()

    def hang() -> Any:
        is_requested.set()
        release.wait(60)

    def stop() -> None:
        is_requested.wait(10)
        abort.stop()

    @tool(available=hang, optional=True)
    def search() -> str:
        """Search."""
        return ""

    for tools, world, budget in (
        ([search], {}, Budget()),
        ([], {"spent_today": hang}, Budget(day_usd=Decimal(1))),
    ):
        is_requested.clear()
        abort.clear()
        threading.Thread(target=stop, daemon=True).start()
        with Provider([]) as provider, recorded() as records:
            events = events_of(
                provider, tools=tools, budget=budget, world={"abort": abort, **world}
            )
        assert result_of(events).terminal_reason == "aborted_streaming"
        assert stop_points(records) == [("1:beginning", {"count": 0})]
        assert provider.requests == []
    release.set()


def test_abort_during_a_budget_approval() -> None:
    """If a run is stopped while approval to exceed the budget is pending, it ends because of the abort, not because of
    the budget.
    """
    abort = Abort()

    async def person(consent: Consent) -> bool:
        abort.stop()
        await asyncio.Event().wait()
        return True

    budget = Budget(interaction_usd=Decimal(0), at_limit="ask")
    with Provider([]) as provider:
        events = events_of(provider, budget=budget, world={"abort": abort, "person": person})
    assert result_of(events).terminal_reason == "aborted_streaming"


def test_abort_in_a_task_that_suppressed_a_cancellation() -> None:
    """An abort works in a task that was cancelled earlier and suppressed the cancellation."""

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
def test_a_stopped_conversation_continues_at_the_emulated_provider(point: str) -> None:
    """A stopped conversation is accepted by `agentobs serve`, which is as strict as the real provider."""
    abort, conversation = Abort(), Conversation()
    call_message = message(
        call("a", "look", where="box"), text("and"), call("b", "look", where="bag")
    )
    kind = TextDelta if point == "stream" else Message
    with Provider([streamed(call_message)]) as provider:
        events_of(
            provider,
            tools=[look],
            conversation=conversation,
            world={"abort": abort},
            on=stopping_at(abort, kind),
        )

    async def resume() -> Any:
        served = script(sent(words("Done.")))
        strict = ServeOptions(match="order", strict=True)
        with ServedProvider(served, strict) as emulated:
            async with AsyncAnthropic(api_key="made-up", base_url=emulated.url) as client:
                world = ticking_world(client)
                return await complete(
                    "Go on", world=world, options=options(), conversation=conversation
                )

    result = in_loop(resume())
    assert (result.subtype, result.text) == ("success", "Done.")
