"""Hostile or broken models, providers and tools: each leads to one clear result and never to a hang."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic import AnthropicError

from agentobs.agent.events import Coercion, Retry, Tombstone, ToolDispatch, ToolDone
from agentobs.agent.execution.live_answers import Inbox, Reply
from agentobs.agent.permissions import Permissions
from agentobs.agent.requests import attempt
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool

from .agent_runs import events_of, of_kind, recorded, result_of
from .provider import Provider, call, cut_after, event_bytes, message, streamed, text, unstreamed
from .provider import Reply as ProviderReply

DONE = message(text("Done."))
STREAM = {"content-type": "text/event-stream"}


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(read_only=True)
def count(number: int, deep: list[int] | None = None) -> str:
    """Count."""
    return str((number, deep))


def tool_results(events: list[Any]) -> list[tuple[str, str]]:
    return [(d.question.tool_use_id, d.answer.outcome) for d in of_kind(events, ToolDone)]


def test_fifty_parallel_calls() -> None:
    """Of fifty parallel calls, ten run at a time, and the results keep the order of the calls."""
    running, most = [0], [0]

    @tool(read_only=True)
    async def peek(number: int) -> int:
        """Peek."""
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001 * (number % 7))
        running[0] -= 1
        return number

    call_message = message(*(call(f"c{n}", "peek", number=n) for n in range(50)))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[peek])
    assert tool_results(events) == [(f"c{n}", "executed") for n in range(50)]
    results = provider.requests[1]["messages"][2]["content"]
    assert [block["content"] for block in results] == [str(n) for n in range(50)]
    assert most == [10]


def test_duplicate_ids() -> None:
    """Calls with the same ID get unique IDs and one result each; an identical call in the same response does not run
    again.
    """
    ran: list[str] = []

    @tool
    def write(what: str) -> str:
        """Write."""
        ran.append(what)
        return what

    call_message = message(
        call("a", "write", what="x"), call("a", "write", what="y"), call("a", "write", what="x")
    )
    repeated_message = message(call("a", "write", what="x"))
    with Provider([streamed(call_message), streamed(repeated_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[write])
    assert tool_results(events) == [
        ("a", "executed"),
        ("a_2", "executed"),
        ("a_3", "deduplicated"),
        ("a_4", "executed"),
    ]
    assert ran == ["x", "y", "x"]
    assert result_of(events).subtype == "success"


def test_duplicate_ids_of_calls_that_start_early() -> None:
    """Calls with the same ID also get unique IDs if they may start while the response is arriving."""
    call_message = message(call("a", "look", where="box"), call("a", "look", where="bag"))
    with Provider([streamed(call_message), streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look])
    assert [(d.question.tool_use_id, d.answer.content) for d in of_kind(events, ToolDone)] == [
        ("a", "nothing in box"),
        ("a_2", "nothing in bag"),
        ("a_3", "nothing in box"),
        ("a_4", "nothing in bag"),
    ]


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ({"number": "3"}, "executed"),
        ({"number": "three"}, "invalid"),
        ({"number": None}, "invalid"),
        ({"number": 1, "more": 2}, "invalid"),
        ({"number": 1, "deep": ["2", 3]}, "executed"),
        ([], "invalid"),
        ("number", "invalid"),
        (None, "invalid"),
    ],
)
def test_arguments_of_the_wrong_type(arguments: Any, outcome: str) -> None:
    """Arguments of the wrong type are converted and reported if possible; otherwise the model gets an error."""
    call_message = message({**call("a", "count"), "input": arguments})
    with Provider([unstreamed(call_message), unstreamed(DONE)]) as provider:
        events = events_of(provider, tools=[count], stream=False)
    assert tool_results(events) == [("a", outcome)]
    coerced = [c.arguments for c in of_kind(events, Coercion)]
    assert coerced == {
        "{'number': '3'}": [("number",)],
        "{'number': 1, 'deep': ['2', 3]}": [("deep.0",)],
    }.get(str(arguments), [])


def test_an_endless_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that never ends is abandoned at a size limit, and the error describes the limit."""
    monkeypatch.setattr(attempt, "RESPONSE_BYTES_MAX", 10_000)
    started = {"type": "message_start", "message": {**DONE, "content": []}}
    block = {"type": "content_block_start", "index": 0, "content_block": text("")}
    delta = {"type": "text_delta", "text": "on and on " * 20}
    more = event_bytes({"type": "content_block_delta", "index": 0, "delta": delta})
    endless = ProviderReply((event_bytes(started), event_bytes(block), more * 500), headers=STREAM)
    with Provider([endless]) as provider:
        result = result_of(events_of(provider))
    assert (result.subtype, result.error) == (
        "error_during_execution",
        "APIResponseValidationError",
    )
    assert "it has more than 10,000 bytes" in str(result.error_text)


def test_a_response_that_takes_too_long() -> None:
    """A stream that contains only pings is abandoned after a timeout, and the request is retried."""
    pings = tuple(event_bytes({"type": "ping"}) for _ in range(2))
    import threading

    hold = threading.Event()
    with Provider([ProviderReply(pings, headers=STREAM, hold=hold), streamed(DONE)]) as provider:
        events = events_of(provider, answer_seconds=0.3)
        hold.set()
    assert [retry.error for retry in of_kind(events, Retry)] == ["APITimeoutError"]
    assert result_of(events).text == "Done."


def test_a_stream_that_breaks_after_a_call_started() -> None:
    """If a stream breaks after a call started, the response is void and the call is stopped; the call of the next
    response runs.
    """
    call_message = message(call("a", "look", where="box"), text("So"))
    second_message = message(call("b", "look", where="bag"))
    replies = [cut_after(call_message, 7), streamed(second_message), streamed(DONE)]
    with Provider(replies) as provider, recorded():
        events = events_of(provider, tools=[look])
    assert of_kind(events, Tombstone) == [Tombstone(1, 1, ("a",))]
    assert [e.question.tool_use_id for e in of_kind(events, ToolDispatch)] == ["a", "b"]
    assert tool_results(events) == [("b", "executed")]
    assert [m["role"] for m in provider.requests[2]["messages"]] == ["user", "assistant", "user"]


class Rude(BaseException):
    """An exception that is derived directly from `BaseException`."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Rude(), GeneratorExit()])
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_tool_that_raises_a_base_exception(error: BaseException, kind: str) -> None:
    """If a tool raises a `BaseException`, its call fails like any other call, and the run continues."""

    async def fall() -> None:
        raise error

    def fall_in_thread() -> None:
        raise error

    falling = tool(name="fall")(fall if kind == "async" else fall_in_thread)
    with Provider([streamed(message(call("a", "fall"))), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[falling])
    assert tool_results(events) == [("a", "failed")]
    assert result_of(events).subtype == "success"


def test_a_tool_that_returns_too_much() -> None:
    """If a tool returns 100 MB, the model gets a part of the result and the size of the rest."""

    @tool
    def shout() -> str:
        """Shout."""
        return "A" * 100_000_000

    with Provider([streamed(message(call("a", "shout"))), streamed(DONE)]) as provider:
        events_of(provider, tools=[shout])
    result = provider.requests[1]["messages"][2]["content"][0]["content"]
    assert len(result) < 100_000
    assert "100,000,000" in result or "99,9" in result


def test_an_internal_exception_ends_the_run_with_a_result() -> None:
    """If the tool set raises an exception, the run ends with a result that contains the exception."""

    def tools() -> list[Any]:
        raise LookupError("no such server")

    async def collect() -> Any:
        from agentobs.agent.loop import complete

        from .agent_runs import options, ticking_world

        with Provider([]) as provider:
            async with provider.client() as client:
                return await complete(
                    "Hello", world=ticking_world(client), options=options(), tools=tools
                )

    result = asyncio.run(collect())
    assert (result.subtype, result.terminal_reason, result.error) == (
        "error_during_execution",
        "internal_error",
        "LookupError",
    )
    assert isinstance(result.exception, LookupError)


def test_a_refusal_is_an_error() -> None:
    """A run that the model refuses ends as an error, not as a success."""
    with Provider([streamed(message(text("No."), stop_reason="refusal"))]) as provider:
        result = result_of(events_of(provider))
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "refusal")


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (400, "prompt is too long: 210000 tokens > 200000 maximum", "prompt_too_long"),
        (413, "Request exceeds the maximum size", "prompt_too_long"),
        (400, "messages.0.content.1.image.source: image exceeds 5 MB maximum", "image_error"),
        (400, "max_tokens: must be greater than 0", "model_error"),
        (404, "model: claude-nope", "model_error"),
    ],
)
def test_provider_errors_have_distinct_end_reasons(status: int, text: str, reason: str) -> None:
    """Provider errors that a caller would handle differently have different end reasons."""
    from .provider import error

    conversation = Conversation()
    refused = error(status, "invalid_request_error", retry="false", text=text)
    with Provider([refused]) as provider:
        result = result_of(events_of(provider, conversation=conversation))
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", reason)
    assert json.dumps(result.error_text) == json.dumps(text)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "a", "name": None, "input": {}},
        {"type": "tool_use", "name": "look", "input": {}},
        {"type": "tool_use", "id": ["a"], "name": "look", "input": {}},
        {"type": "tool_use", "id": "", "name": "look", "input": {}},
    ],
)
@pytest.mark.parametrize("send", [unstreamed, streamed])
def test_a_call_without_id_or_name(block: dict[str, Any], send: Any) -> None:
    """A response with a call without an ID or a name is invalid, and the error states this."""
    with Provider([send(message(block))]) as provider:
        result = result_of(events_of(provider, tools=[look], stream=send is streamed))
    assert (result.terminal_reason, result.error) == ("model_error", "APIResponseValidationError")
    assert "a tool call has no" in str(result.error_text)


def test_deeply_nested_input() -> None:
    """A call whose input is nested too deeply is invalid, and the run continues."""
    deep = "[" * 900 + "]" * 900
    call_message = {**call("a", "look"), "cut_input": '{"where": ' + deep + "}"}
    with Provider([streamed(message(call_message)), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look])
    assert tool_results(events) == [("a", "invalid")]


def test_an_empty_text_is_not_sent_back() -> None:
    """An empty text block in a response is not sent back, because the provider rejects requests that contain one."""
    call_message = message(text(""), call("a", "look", where="box"))
    with Provider([unstreamed(call_message), unstreamed(DONE)]) as provider:
        events_of(provider, tools=[look], stream=False)
    assert provider.requests[1]["messages"][1]["content"] == [call("a", "look", where="box")]


def test_a_line_that_never_ends() -> None:
    """A stream whose first line never ends is abandoned at the size limit, like any endless stream."""
    endless = ProviderReply((b"data: ", b"x" * 10_000_000), headers=STREAM)
    with pytest.MonkeyPatch.context() as patch, Provider([endless]) as provider:
        patch.setattr(attempt, "RESPONSE_BYTES_MAX", 1_000_000)
        result = result_of(events_of(provider))
    assert "it has more than 1,000,000 bytes" in str(result.error_text)


def test_an_error_of_the_sdk_inside_a_tool() -> None:
    """If a tool raises an error of the SDK, this is a failure of the tool, not of the provider."""

    @tool(read_only=True)
    def verify() -> None:
        """Verify."""
        raise AnthropicError("install anthropic[webhooks]")

    with Provider([streamed(message(call("a", "verify"))), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[verify])
    assert tool_results(events) == [("a", "failed")]


@pytest.mark.parametrize("answer", [None, "yes", 1, Reply(allow="no")])  # type: ignore[arg-type]
def test_invalid_answers_of_a_person(answer: Any) -> None:
    """Every answer of a person except an exact `allow` is a denial."""

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("the tool ran")

    with Provider([streamed(message(call("a", "write"))), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[write], permissions=Permissions(), world={"person": lambda _: answer}
        )
    assert tool_results(events) == [("a", "denied")]


@pytest.mark.parametrize(
    "error", [SystemExit(), asyncio.CancelledError(), RuntimeError("x" * 10**7)]
)
def test_an_approval_request_that_raises_any_exception(error: BaseException) -> None:
    """If the approval request raises, the call is denied, and the run continues."""

    async def person(_: Any) -> bool:
        raise error

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("the tool ran")

    with Provider([streamed(message(call("a", "write"))), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[write], permissions=Permissions(), world={"person": person}
        )
    assert tool_results(events) == [("a", "denied")]
    assert result_of(events).subtype == "success"


def test_text_that_cannot_be_sent() -> None:
    """Lone surrogates in a message to the agent are replaced, and blank messages are omitted."""
    inbox = Inbox()
    inbox.follow_up("  ")
    inbox.follow_up("half \ud83d")
    with Provider([streamed(DONE), streamed(DONE)]) as provider:
        events_of(provider, world={"inbox": inbox})
    assert provider.requests[1]["messages"][-1]["content"] == [text("half ?")]
