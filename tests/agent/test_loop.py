"""The loop: turns, retries, ends of runs, and emitted records."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from unittest.mock import ANY

import anthropic
import httpx2
import pytest

from agentobs import tracing
from agentobs.agent.events import (
    Event,
    Message,
    RequestStart,
    Retry,
    TextDelta,
    ThinkingDelta,
    Tombstone,
    ToolDispatch,
    ToolDone,
    Transition,
)
from agentobs.agent.loop import complete, live_world, run
from agentobs.agent.run_result import Result, Tokens
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import Tool, tool
from agentobs.errors import ReplayEnd
from agentobs.records.exchanges import Place, ToolAnswer, ToolExchange, ToolQuestion
from agentobs.records.facts import Event as EventFact
from agentobs.records.facts import InteractionEnd, InteractionStart, SpanStart
from agentobs.sink import Record

from .agent_runs import (
    SESSION,
    events_of,
    in_loop,
    of_kind,
    options,
    recorded,
    result_of,
    spans,
    ticking_world,
)
from .provider import (
    MODEL,
    Provider,
    Reply,
    call,
    cut_after,
    error,
    error_in_stream,
    message,
    streamed,
    text,
    unstreamed,
)

HELLO = {"role": "user", "content": "Hello"}
DONE = message(text("Done."))
THOUGHT = {"type": "thinking", "thinking": "Hm, well", "signature": "c2lnbmVkIQ=="}


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def request_start(turn: int, attempt: int, transition: Transition = "start") -> RequestStart:
    return RequestStart(turn, attempt, transition, "main", MODEL)


def test_one_response() -> None:
    """A prompt that needs no tool leads to one request, the deltas, the message and the result."""
    answer = message(THOUGHT, text("Hi there"))
    with Provider([streamed(answer)]) as provider:
        events = events_of(provider)
    assert events == [
        request_start(1, 1),
        ThinkingDelta("Hm, "),
        ThinkingDelta("well"),
        TextDelta("Hi t"),
        TextDelta("here"),
        Message(1, answer),
        Result(
            subtype="success",
            terminal_reason="completed",
            text="Hi there",
            stop_reason="end_turn",
            num_turns=1,
            error=None,
            error_text=None,
            usage={MODEL: Tokens(10, 5, 3)},
            duration_ns=15,
            provider_ns=5,
            provider_ok_ns=5,
            tools_ns=0,
            session_id=None,
        ),
    ]
    assert provider.requests == [
        {"model": MODEL, "max_tokens": 100, "messages": [HELLO], "stream": True}
    ]


def test_concurrent_tools() -> None:
    """Two read-only calls run concurrently, and their results are sent back in order in one message."""
    both = threading.Barrier(2)

    @tool(read_only=True)
    def peek(where: str) -> str:
        both.wait(10)
        return f"nothing in {where}"

    call_message = message(
        text("Let me look."),
        call("a", "peek", where="box"),
        call("b", "peek", where="bag"),
        stop_reason="tool_use",
    )
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[peek])
    box_question = ToolQuestion("a", "peek", {"where": "box"})
    bag_question = ToolQuestion("b", "peek", {"where": "bag"})
    steps = of_kind(events, RequestStart, Message, ToolDispatch, ToolDone)
    assert [(e.question, e.answer) if isinstance(e, ToolDone) else e for e in steps] == [
        request_start(1, 1),
        ToolDispatch(box_question),
        ToolDispatch(bag_question),
        Message(1, call_message),
        (box_question, ToolAnswer("nothing in box")),
        (bag_question, ToolAnswer("nothing in bag")),
        request_start(2, 1, "next_turn"),
        Message(2, DONE),
    ]
    assert (result_of(events).num_turns, result_of(events).usage) == (
        2,
        {MODEL: Tokens(20, 10, 6)},
    )
    assert provider.requests[1]["tools"] == [peek.declaration]
    assert provider.requests[1]["messages"] == [
        HELLO,
        {"role": "assistant", "content": call_message["content"]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "nothing in box"},
                {"type": "tool_result", "tool_use_id": "b", "content": "nothing in bag"},
            ],
        },
    ]


@pytest.mark.parametrize("stop_reason", ["end_turn", "max_tokens", "some_new_reason"])
def test_calls_decide_whether_the_loop_continues(stop_reason: str) -> None:
    """If a response contains a call, the tool runs, whatever the stop reason is; without a call the loop ends."""
    call_message = message(call("a", "look", where="box"), stop_reason=stop_reason)
    ending = message(text("Enough."), stop_reason="tool_use")
    with Provider([streamed(call_message), streamed(ending)]) as provider:
        events = events_of(provider, tools=[look])
    assert len(of_kind(events, ToolDone)) == 1
    assert (result_of(events).subtype, result_of(events).stop_reason) == ("success", "tool_use")


def test_responses_are_sent_back_unchanged() -> None:
    """Responses are sent back unchanged, including unknown blocks and fields, signatures and unusual text."""
    unusual_block: dict[str, Any] = {
        "type": "hologram",
        "depth": 1.50,
        "empty": None,
        "nested": {"z": [], "a": {"ü": "\u2028 é \U0001f600"}},
    }
    call_message = message(
        THOUGHT,
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        unusual_block,
        {**text("See"), "citations": None, "new_field": {"x": [1]}},
        {**call("a", "look", where="ü"), "caller": {"type": "direct"}},
    )
    for replies in (
        [streamed(call_message), streamed(DONE)],
        [unstreamed(call_message), unstreamed(DONE)],
    ):
        with Provider(replies) as provider:
            events_of(provider, tools=[look], stream=replies[0].chunks[0].startswith(b"event"))
        echoed = provider.requests[1]["messages"][1]
        assert canonical(echoed) == canonical(
            {"role": "assistant", "content": call_message["content"]}
        )


def test_messages_are_the_same_without_streaming() -> None:
    """With and without streaming, the conversation, the tool results and the usage are identical; only the deltas are
    missing.
    """
    call_message = message(
        THOUGHT, text("Hm"), call("a", "look", where="box"), container={"id": "c"}
    )
    outcomes = []
    for stream, send in ((True, streamed), (False, unstreamed)):
        conversation = Conversation()
        with Provider([send(call_message), send(DONE)]) as provider:
            events = events_of(provider, tools=[look], conversation=conversation, stream=stream)
        bare = of_kind(events, RequestStart, Message, ToolDone)
        assert ("stream" in provider.requests[0]) is stream
        assert bool(of_kind(events, TextDelta, ThinkingDelta)) is stream
        steps = [(e.question, e.answer) if isinstance(e, ToolDone) else e for e in bare]
        outcomes.append((conversation, steps, result_of(events).usage))
    assert outcomes[0] == outcomes[1]


def test_an_overload_is_retried() -> None:
    """A 529 is retried after a wait on the world's clock that doubles each time."""
    waits: list[float] = []
    replies = [error(529, "overloaded_error"), error(529, "overloaded_error"), streamed(DONE)]
    with Provider(replies) as provider:
        events = events_of(provider, waits=waits)
    assert of_kind(events, RequestStart, Retry) == [
        request_start(1, 1),
        Retry(1, 1, 0.5, "overloaded_error", 529),
        request_start(1, 2),
        Retry(1, 2, 1.0, "overloaded_error", 529),
        request_start(1, 3),
    ]
    assert waits == [0.5, 1.0]
    assert provider.requests[0] == provider.requests[1] == provider.requests[2]
    assert [h["x-stainless-retry-count"] for h in provider.headers] == ["0", "0", "0"]
    assert result_of(events).subtype == "success"


def test_retry_after_is_followed() -> None:
    """If a response has a `retry-after` header, the wait has exactly that length."""
    waits: list[float] = []
    with Provider([error(429, "rate_limit_error", retry_after="3"), unstreamed(DONE)]) as provider:
        events_of(provider, waits=waits, stream=False)
    assert waits == [3.0]


def test_an_overload_inside_a_stream_is_retried() -> None:
    """An error event in a stream with status 200 is a failed attempt, and the `retry-after` header of the 200 is
    ignored.
    """
    waits: list[float] = []
    with Provider(
        [error_in_stream("overloaded_error", retry_after="41"), streamed(DONE)]
    ) as provider:
        events = events_of(provider, waits=waits)
    assert of_kind(events, Retry) == [Retry(1, 1, 0.5, "overloaded_error", 200)]
    assert (waits, result_of(events).text) == ([0.5], "Done.")


def test_a_broken_stream_is_retried() -> None:
    """If a stream breaks, its deltas are void and the same request is retried; both attempts count."""
    answer = message(text("Hello you"))
    with Provider([cut_after(answer, 4), streamed(answer)]) as provider:
        events = events_of(provider)
    assert events[:-1] == [
        request_start(1, 1),
        TextDelta("Hell"),
        Tombstone(1, 1, ()),
        Retry(1, 1, 0.5, "RemoteProtocolError", None),
        request_start(1, 2),
        TextDelta("Hell"),
        TextDelta("o you"),
        Message(1, answer),
    ]
    assert result_of(events).usage == {MODEL: Tokens(20, 6, 6)}


def test_a_stream_that_ends_early_is_retried() -> None:
    """A stream without its last event is retried, even if the connection was closed cleanly."""
    chunks = streamed(DONE).chunks
    truncated_reply = Reply(chunks[:-1], headers=streamed(DONE).headers)
    with Provider([truncated_reply, streamed(DONE)]) as provider:
        events = events_of(provider)
    assert of_kind(events, Retry) == [Retry(1, 1, 0.5, "CutError", None)]
    assert result_of(events).text == "Done."


def test_a_connection_that_breaks_after_the_last_event() -> None:
    """If a connection breaks after the last event of a stream, the response is complete, and nothing is retried."""
    with Provider([cut_after(DONE, 100)]) as provider:
        events = events_of(provider)
    assert (len(provider.requests), result_of(events).text) == (1, "Done.")


@pytest.mark.parametrize("stream", [True, False])
def test_a_200_that_is_not_a_message(stream: bool) -> None:
    """A 200 that is not a message is not retried, and the error describes what was received."""
    page = Reply((b"<html>hello</html>",), headers={"content-type": "text/html"})
    with Provider([page]) as provider:
        result = result_of(events_of(provider, stream=stream))
    assert (result.subtype, result.error) == (
        "error_during_execution",
        "APIResponseValidationError",
    )
    assert "(text/html, status 200)" in str(result.error_text)


def test_a_permanent_error_ends_the_run() -> None:
    """A permanent error ends the run with one result that contains the error, and leaves the conversation unchanged."""
    conversation = Conversation()
    with Provider([error(400, "invalid_request_error")]) as provider:
        events = events_of(provider, conversation=conversation)
    assert events == [
        request_start(1, 1),
        Result(
            subtype="error_during_execution",
            terminal_reason="model_error",
            text="",
            stop_reason=None,
            num_turns=0,
            error="invalid_request_error",
            error_text="Sorry",
            usage={},
            duration_ns=4,
            provider_ns=1,
            provider_ok_ns=0,
            tools_ns=0,
            session_id=None,
        ),
    ]
    assert conversation == Conversation()


def test_retries_are_limited() -> None:
    """After `max_retries` retries, the last error ends the run without a further wait."""
    waits: list[float] = []
    with Provider([error(500, "api_error")] * 3) as provider:
        result = result_of(events_of(provider, waits=waits, max_retries=2))
    assert (result.error, len(provider.requests), waits) == ("api_error", 3, [0.5, 1.0])


def test_turns_are_limited() -> None:
    """After `max_turns` turns with tools, the run ends with the tool results in the conversation, which can be
    continued.
    """
    call_message = message(call("a", "look", where="box"), stop_reason="tool_use")
    conversation = Conversation()
    with Provider([streamed(call_message), streamed(call_message)]) as provider:
        result = result_of(
            events_of(provider, tools=[look], max_turns=2, conversation=conversation)
        )
    assert (result.subtype, result.num_turns, len(provider.requests)) == ("error_max_turns", 2, 2)
    assert (conversation.turns, [m["role"] for m in conversation.messages]) == (
        2,
        ["user", "assistant", "user", "assistant", "user"],
    )


def test_tool_errors_are_sent_to_the_model() -> None:
    """Unknown tools, invalid and truncated input, exceptions and timeouts become error results, and the run
    continues.
    """

    @tool
    def fall() -> None:
        raise RuntimeError("ouch")

    @tool(timeout_s=0.01)
    async def wait() -> None:
        await asyncio.Event().wait()

    call_message = message(
        call("a", "missing"),
        call("b", "look", were="box"),
        call("c", "fall"),
        call("d", "wait"),
        {**call("e", "look"), "cut_input": '{"where": "bo'},
        stop_reason="max_tokens",
    )
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look, fall, wait])
    outcomes = [done.answer.outcome for done in of_kind(events, ToolDone)]
    assert outcomes == ["unknown", "invalid", "failed", "timeout", "invalid"]
    assert provider.requests[1]["messages"][1]["content"][4] == call("e", "look")
    assert [
        (block["tool_use_id"], block["content"].splitlines()[0], block["is_error"])
        for block in provider.requests[1]["messages"][2]["content"]
    ] == [
        ("a", "There is no tool named 'missing'. The tools are: look, fall, wait.", True),
        ("b", "The input of look is invalid:", True),
        ("c", "fall failed with RuntimeError: ouch", True),
        ("d", "wait did not finish within 0.01 seconds and was abandoned.", True),
        ("e", "The input of look is invalid:", True),
    ]


def test_a_second_prompt_continues_the_conversation() -> None:
    """A second prompt sends all earlier messages again and continues the turn count."""
    conversation = Conversation()
    call_message = message(call("a", "look", where="box"))
    with Provider([streamed(call_message), streamed(DONE), unstreamed(DONE)]) as provider:
        events_of(provider, tools=[look], conversation=conversation)
        history = conversation.messages
        events = events_of(provider, "And now?", conversation=conversation, stream=False)
    assert events[:-1] == [request_start(3, 1), Message(3, DONE)]
    second_prompt = {"role": "user", "content": "And now?"}
    assert provider.requests[2]["messages"] == [*history, second_prompt]
    last = {"role": "assistant", "content": DONE["content"]}
    assert conversation == Conversation((*history, second_prompt, last), turns=3, tool_turns=1)


def test_further_parameters_and_betas_are_sent() -> None:
    """The system prompt, betas and arbitrary parameters reach the provider."""
    with Provider([unstreamed(DONE)]) as provider:
        events_of(
            provider,
            stream=False,
            system=[text("Be kind.")],
            betas=("a-1", "b-2"),
            extra={"thinking": {"type": "adaptive"}, "brand_new": {"x": 1.5}},
        )
    assert provider.requests == [
        {
            "model": MODEL,
            "max_tokens": 100,
            "messages": [HELLO],
            "system": [text("Be kind.")],
            "thinking": {"type": "adaptive"},
            "brand_new": {"x": 1.5},
        }
    ]
    assert provider.headers[0]["anthropic-beta"] == "a-1,b-2"


def test_complete_returns_the_result() -> None:
    """`complete` runs the agent in the live world and returns only the result."""
    call_message = message(call("a", "look", where="box"))

    async def run_agent(provider: Provider) -> Result:
        async with provider.client() as client:
            world = live_world(client, [look])
            return await complete("Hello", world=world, options=options(), tools=[look])

    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        result = in_loop(run_agent(provider))
    assert (result.subtype, result.text, result.num_turns) == ("success", "Done.", 2)
    assert result.duration_ns > 0


def facts(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Return facts without IDs and times, in the order in which they were emitted."""
    found: list[tuple[Any, ...]] = []
    for record in records:
        match record:
            case InteractionStart():
                found.append(("interaction", record.lane))
            case InteractionEnd():
                found.append(("ended", record.result, record.is_error))
            case EventFact():
                found.append((record.kind, record.label, record.turn, dict(record.numbers)))
            case ToolExchange():
                found.append(("tool", record.question.tool_use_id, record.place.turn))
            case _:
                pass
    # Parallel tools end in any order.
    tools = iter(sorted(fact for fact in found if fact[0] == "tool"))
    return [next(tools) if fact[0] == "tool" else fact for fact in found]


def test_facts_form_a_tree() -> None:
    """The span of an interaction contains its requests and tools, and a request contains its waits; all are in one
    trace.
    """
    call_message = message(call("a", "look", where="box"), call("b", "look", where="bag"))
    replies = [error(529, "overloaded_error"), streamed(call_message), streamed(DONE)]
    with Provider(replies) as provider, recorded() as records:
        events = events_of(provider, tools=[look], agent="finder")
    assert spans(records) == [
        ("interaction", "finder", None, "ok"),
        ("llm_request", MODEL, "interaction", "ok"),
        ("retry_wait", None, "llm_request", "ok"),
        ("tool", "look", "interaction", "ok"),
        ("tool", "look", "interaction", "ok"),
        ("execution", "look", "tool", "ok"),
        ("execution", "look", "tool", "ok"),
        ("llm_request", MODEL, "interaction", "ok"),
    ]
    assert facts(records) == [
        ("interaction", "main"),
        ("context", None, 1, ANY),
        ("retry", "overloaded_error", 1, {"attempt": 1, "wait_ns": 500_000_000}),
        ("tool", "a", 1),
        ("tool", "b", 1),
        ("context", None, 2, ANY),
        ("ended", "success", False),
    ]
    (start,) = of_kind(records, InteractionStart)
    assert {r.trace_id for r in of_kind(records, SpanStart)} == {start.interaction_id}
    assert {r.session_id for r in of_kind(records, SpanStart, EventFact)} == {SESSION}
    assert result_of(events).session_id == SESSION
    tools = {r.span_id for r in of_kind(records, SpanStart) if r.name == "tool"}
    exchanges = of_kind(records, ToolExchange)
    assert {exchange.place.span_id for exchange in exchanges} == tools
    assert {exchange.place.interaction_id for exchange in exchanges} == {start.interaction_id}


def test_every_attempt_has_its_span() -> None:
    """Each attempt is sent with the span and turn of its request as the current place; afterwards the previous place is
    restored.
    """
    call_message = message(call("a", "look", where="box"))
    script = iter([(529, {}), (200, call_message), (200, DONE)])
    places: list[Place | None] = []

    def send(request: httpx2.Request) -> httpx2.Response:
        places.append(tracing.place())
        status, body = next(script)
        return httpx2.Response(status, json=body)

    async def run_agent() -> None:
        transport = httpx2.AsyncClient(transport=httpx2.MockTransport(send))
        async with anthropic.AsyncAnthropic(api_key="made-up", http_client=transport) as client:
            world = ticking_world(client, [look])
            running = run("Hello", world=world, options=options(stream=False), tools=[look])
            async for _ in running:
                assert tracing.place() == Place(SESSION)

    with recorded() as records:
        in_loop(run_agent())
    (start,) = of_kind(records, InteractionStart)
    first, second = [r.span_id for r in of_kind(records, SpanStart) if r.name == "llm_request"]
    chains = [place.chain_id for place in places if place]
    assert len(set(chains)) == 2
    assert places == [
        Place(SESSION, start.interaction_id, "main", 1, first, chain_id=chains[0], depth=1),
        Place(SESSION, start.interaction_id, "main", 1, first, chain_id=chains[0], depth=1),
        Place(SESSION, start.interaction_id, "main", 2, second, chain_id=chains[2], depth=1),
    ]


def test_failed_runs_end_the_interaction() -> None:
    """A run that exceeds its turns or fails ends its interaction as an error before it yields the result."""
    call_message = message(call("a", "look", where="box"))
    with Provider([streamed(call_message), error(400, "invalid_request_error")]) as provider:
        with recorded() as most:
            events_of(provider, tools=[look], max_turns=1)
        with recorded() as refused:
            events_of(provider)
    assert facts(most)[-2:] == [
        ("max_turns", None, 1, {"max_turns": 1}),
        ("ended", "error_max_turns", True),
    ]
    assert facts(refused)[-1] == ("ended", "error_during_execution", True)
    assert [(name, status) for name, _, _, status in spans(refused)] == [
        ("interaction", "error"),
        ("llm_request", "error"),
    ]


def started(
    client: anthropic.AsyncAnthropic, tools: Sequence[Tool] = ()
) -> AsyncGenerator[Event, None]:
    return run("Hello", world=ticking_world(client, tools), options=options(), tools=tools)


CANCELLED = ("ended", "cancelled", False)


def test_cancellation_during_a_stream() -> None:
    """If the task is cancelled during a stream, every span ends as cancelled."""
    hold = threading.Event()

    async def stop(provider: Provider) -> None:
        first_delta = asyncio.Event()

        async def consume() -> None:
            async with provider.client() as client:
                async for event in started(client):
                    if isinstance(event, TextDelta):
                        first_delta.set()

        task = asyncio.create_task(consume())
        await first_delta.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    paused = streamed(message(text("Hello")), hold=hold)
    with Provider([paused]) as provider, recorded() as records:
        in_loop(stop(provider))
        hold.set()
    assert [status for *_, status in spans(records)] == ["cancelled", "cancelled"]
    assert facts(records)[-1] == CANCELLED


def test_cancellation_while_tools_run() -> None:
    """If the task is cancelled while tools run, the tools are stopped, and every span ends as cancelled."""
    conversation = Conversation()
    call_message = message(call("a", "wait"), call("b", "wait"), text("Well"))

    async def stop(provider: Provider) -> list[str]:
        running_now, stopped = asyncio.Semaphore(0), []

        # This is not a reader, because a reader may start before the response is complete.
        @tool(concurrent=True)
        async def wait() -> None:
            running_now.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append("one")
                raise

        async with provider.client() as client:
            world = ticking_world(client, [wait])
            running = complete(
                "Hello", world=world, options=options(), tools=[wait], conversation=conversation
            )
            task = asyncio.create_task(running)
            await running_now.acquire()
            await running_now.acquire()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return stopped

    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        assert in_loop(stop(provider)) == ["one", "one"]
        # The response entered the conversation before its tools ran, so the next prompt can
        # continue.
        assert [m["role"] for m in conversation.messages] == ["user", "assistant"]
        events_of(provider, "Go on", conversation=conversation)
    assert spans(records)[:7] == [
        ("interaction", "main", None, "cancelled"),
        ("llm_request", MODEL, "interaction", "ok"),
        ("tool", "wait", "interaction", "cancelled"),
        ("tool", "wait", "interaction", "cancelled"),
        ("queued", "wait", "tool", "ok"),
        ("execution", "wait", "tool", "cancelled"),
        ("execution", "wait", "tool", "cancelled"),
    ]
    blocks = provider.requests[1]["messages"][2]["content"]
    assert [block["type"] for block in blocks] == ["tool_result", "tool_result", "text"]


@pytest.mark.slow
@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("kind", [RequestStart, TextDelta, Message, ToolDispatch])
def test_closing_the_generator_early(kind: type, close: bool) -> None:
    """If the caller leaves the generator at any event, every span ends, whether the generator is closed or only
    dropped.
    """
    call_message = message(text("Hm"), call("a", "look", where="box"))

    async def leave(provider: Provider) -> None:
        async with provider.client() as client:
            running = started(client, [look])
            async for event in running:
                if isinstance(event, kind):
                    break
            if close:
                await running.aclose()
            del running
            gc.collect()
            await asyncio.sleep(0.01)

    with Provider([streamed(call_message)]) as provider, recorded() as records:
        in_loop(leave(provider))
    assert {status for *_, status in spans(records)} <= {"ok", "cancelled"}
    assert facts(records)[-1] == CANCELLED
    assert isinstance(records[-1], InteractionEnd)  # the inner spans were already closed


def test_closing_the_generator_at_the_result() -> None:
    """If the caller leaves the generator at the result, the interaction has already ended successfully."""

    async def leave(provider: Provider) -> None:
        async with provider.client() as client:
            running = started(client)
            async for event in running:
                if isinstance(event, Result):
                    break
            await running.aclose()

    with Provider([streamed(DONE)]) as provider, recorded() as records:
        in_loop(leave(provider))
    assert facts(records)[-1] == ("ended", "success", False)


class Differs(anthropic.AnthropicError, ReplayEnd):
    """Simulates a replay that differs from its recording."""


def test_an_unknown_exception_propagates() -> None:
    """An exception that is not an error of the provider is not retried; it propagates unchanged, and every span
    ends.
    """
    requests = []

    def differ(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        raise Differs("the question differs")

    async def run_agent() -> None:
        transport = httpx2.AsyncClient(transport=httpx2.MockTransport(differ))
        async with anthropic.AsyncAnthropic(api_key="made-up", http_client=transport) as client:
            await complete("Hello", world=ticking_world(client), options=options())

    with recorded() as records, pytest.raises(Differs):
        in_loop(run_agent())
    assert len(requests) == 1
    assert [status for *_, status in spans(records)] == ["error", "error"]
    assert facts(records)[-1] == ("ended", "error_during_execution", True)
