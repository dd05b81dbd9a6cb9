"""Stopping a run: in the middle of a stream, before its tools, among them, while somebody is asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentobs.agent.asking import Consent
from agentobs.agent.events import (
    Event,
    Message,
    Permission,
    RequestStart,
    TextDelta,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.permissions import Permissions
from agentobs.agent.state import Conversation
from agentobs.agent.tools import tool
from agentobs.records.exchanges import ToolExchange, WorldExchange
from agentobs.records.facts import InteractionEnd
from agentobs.records.messages import fault
from agentobs.world import Abort

from .provider import Provider, call, error, message, streamed, text, whole
from .scene import events_of, of_kind, recorded, result_of, spans

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
    """Where the run was stopped, as it was recorded."""
    asked = [r for r in of_kind(records, WorldExchange) if r.question.kind == "abort"]
    return [(exchange.question.key, exchange.answer) for exchange in asked]


def goes_on(talk: Conversation, provider: Provider) -> None:
    """The stopped conversation is one that the provider takes, with a new prompt."""
    assert fault([*talk.messages, {"role": "user", "content": "Go on"}]) is None
    result = result_of(events_of(provider, "Go on", conversation=talk))
    assert (result.subtype, result.text) == ("success", "Done.")


def test_in_the_middle_of_a_stream() -> None:
    """What came stays in the conversation, as far as the provider takes it back; the result says so."""
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
    """An abort interrupts the wait for the next piece, from another thread; nobody waits for the provider."""
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
    """Where nothing came at all, the prompt stays, and the next one follows it."""
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
    """No tool begins any more, and each call has an error for a result."""
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
    """Tools that run are stopped, those not begun never begin, those that were done keep their results."""
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
    """A tool whose interrupt behaviour is to block runs to its end before the run ends."""
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
    """A call that began while the answer was coming is stopped with it, and has its result."""
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
    """An abort does not wait for a person; the call is answered as stopped."""
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
    """An abort interrupts the wait before the next attempt."""
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
