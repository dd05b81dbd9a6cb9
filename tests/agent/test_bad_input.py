"""Hostile or broken models, providers and tools: each leads to one clear result, and never to a hang."""

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

from .provider import Provider, call, cut_after, event_bytes, message, streamed, text, whole
from .provider import Reply as Sent
from .scene import events_of, of_kind, recorded, result_of

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


def done(events: list[Any]) -> list[tuple[str, str]]:
    return [(d.question.tool_use_id, d.answer.outcome) for d in of_kind(events, ToolDone)]


def test_fifty_parallel_calls() -> None:
    """Fifty calls run ten at a time, and each has its result in its place."""
    running, most = [0], [0]

    @tool(read_only=True)
    async def peek(number: int) -> int:
        """Peek."""
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.001 * (number % 7))
        running[0] -= 1
        return number

    asking = message(*(call(f"c{n}", "peek", number=n) for n in range(50)))
    with Provider([streamed(asking), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[peek])
    assert done(events) == [(f"c{n}", "executed") for n in range(50)]
    results = provider.requests[1]["messages"][2]["content"]
    assert [block["content"] for block in results] == [str(n) for n in range(50)]
    assert most == [10]


def test_doubled_ids() -> None:
    """Two calls with the same ID both have a result under unique IDs; a repeated call runs once."""
    ran: list[str] = []

    @tool
    def write(what: str) -> str:
        """Write."""
        ran.append(what)
        return what

    asking = message(
        call("a", "write", what="x"), call("a", "write", what="y"), call("a", "write", what="x")
    )
    again = message(call("a", "write", what="x"))
    with Provider([streamed(asking), streamed(again), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[write])
    assert done(events) == [
        ("a", "executed"),
        ("a_2", "executed"),
        ("a_3", "deduplicated"),
        ("a_4", "executed"),
    ]
    assert ran == ["x", "y", "x"]
    assert result_of(events).subtype == "success"


def test_doubled_ids_of_calls_that_begin_early() -> None:
    """The same for calls that may start while the response is arriving."""
    asking = message(call("a", "look", where="box"), call("a", "look", where="bag"))
    with Provider([streamed(asking), streamed(asking), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look])
    assert [(d.question.tool_use_id, d.answer.content) for d in of_kind(events, ToolDone)] == [
        ("a", "nothing in box"),
        ("a_2", "nothing in bag"),
        ("a_3", "nothing in box"),
        ("a_4", "nothing in bag"),
    ]


@pytest.mark.parametrize(
    ("given", "outcome"),
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
def test_arguments_of_the_wrong_type(given: Any, outcome: str) -> None:
    """Convertible arguments are converted and reported; all others are returned to the model as errors."""
    asking = message({**call("a", "count"), "input": given})
    with Provider([whole(asking), whole(DONE)]) as provider:
        events = events_of(provider, tools=[count], stream=False)
    assert done(events) == [("a", outcome)]
    coerced = [c.arguments for c in of_kind(events, Coercion)]
    assert coerced == {
        "{'number': '3'}": [("number",)],
        "{'number': 1, 'deep': ['2', 3]}": [("deep.0",)],
    }.get(str(given), [])


def test_an_endless_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that never ends is given up at a limit, with an error that says so."""
    monkeypatch.setattr(attempt, "ANSWER_BYTES_MAX", 10_000)
    started = {"type": "message_start", "message": {**DONE, "content": []}}
    block = {"type": "content_block_start", "index": 0, "content_block": text("")}
    delta = {"type": "text_delta", "text": "on and on " * 20}
    more = event_bytes({"type": "content_block_delta", "index": 0, "delta": delta})
    endless = Sent((event_bytes(started), event_bytes(block), more * 500), headers=STREAM)
    with Provider([endless]) as provider:
        result = result_of(events_of(provider))
    assert (result.subtype, result.error) == (
        "error_during_execution",
        "APIResponseValidationError",
    )
    assert "continues after 10,000 bytes" in str(result.error_text)


def test_an_answer_that_takes_too_long() -> None:
    """A stream with nothing except pings is given up after a timeout, and the request is retried."""
    pings = tuple(event_bytes({"type": "ping"}) for _ in range(2))
    import threading

    hold = threading.Event()
    with Provider([Sent(pings, headers=STREAM, hold=hold), streamed(DONE)]) as provider:
        events = events_of(provider, answer_seconds=0.3)
        hold.set()
    assert [retry.error for retry in of_kind(events, Retry)] == ["APITimeoutError"]
    assert result_of(events).text == "Done."


def test_a_stream_cut_after_a_call_began() -> None:
    """The broken response is a tombstone: its call is stopped and void, and the next response's call runs."""
    asking = message(call("a", "look", where="box"), text("So"))
    again = message(call("b", "look", where="bag"))
    replies = [cut_after(asking, 7), streamed(again), streamed(DONE)]
    with Provider(replies) as provider, recorded():
        events = events_of(provider, tools=[look])
    assert of_kind(events, Tombstone) == [Tombstone(1, 1, ("a",))]
    assert [e.question.tool_use_id for e in of_kind(events, ToolDispatch)] == ["a", "b"]
    assert done(events) == [("b", "executed")]
    assert [m["role"] for m in provider.requests[2]["messages"]] == ["user", "assistant", "user"]


class Rude(BaseException):
    """Neither an Exception nor an exit."""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Rude(), GeneratorExit()])
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_tool_that_raises_what_is_no_exception(error: BaseException, kind: str) -> None:
    """It fails like any other tool, and the run continues."""

    async def fall() -> None:
        raise error

    def fall_in_thread() -> None:
        raise error

    falling = tool(name="fall")(fall if kind == "async" else fall_in_thread)
    with Provider([streamed(message(call("a", "fall"))), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[falling])
    assert done(events) == [("a", "failed")]
    assert result_of(events).subtype == "success"


def test_a_tool_that_returns_too_much() -> None:
    """Of a 100 MB result, the model gets a part and the size of the rest."""

    @tool
    def shout() -> str:
        """Shout."""
        return "A" * 100_000_000

    with Provider([streamed(message(call("a", "shout"))), streamed(DONE)]) as provider:
        events_of(provider, tools=[shout])
    result = provider.requests[1]["messages"][2]["content"][0]["content"]
    assert len(result) < 100_000
    assert "100,000,000" in result or "99,9" in result


def test_an_exception_of_ours_is_a_result() -> None:
    """An unavailable tool set ends the run with a result that keeps the exception."""

    def tools() -> list[Any]:
        raise LookupError("no such server")

    async def collect() -> Any:
        from agentobs.agent.loop import complete

        from .scene import options, ticking_world

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
    """A refusal of the model is not a response."""
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
def test_what_ended_the_run(status: int, text: str, reason: str) -> None:
    """Provider errors are distinguished by what can be done about them."""
    from .provider import error

    talk = Conversation()
    refused = error(status, "invalid_request_error", retry="false", text=text)
    with Provider([refused]) as provider:
        result = result_of(events_of(provider, conversation=talk))
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
@pytest.mark.parametrize("send", [whole, streamed])
def test_a_call_without_id_or_name(block: dict[str, Any], send: Any) -> None:
    """Such a response is invalid; the error says so."""
    with Provider([send(message(block))]) as provider:
        result = result_of(events_of(provider, tools=[look], stream=send is streamed))
    assert (result.terminal_reason, result.error) == ("model_error", "APIResponseValidationError")
    assert "a tool call has no" in str(result.error_text)


def test_input_that_is_nested_deeply() -> None:
    """A call with absurd input is one invalid call, and the rest of the response stays."""
    deep = "[" * 900 + "]" * 900
    asking = {**call("a", "look"), "cut_input": '{"where": ' + deep + "}"}
    with Provider([streamed(message(asking)), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[look])
    assert done(events) == [("a", "invalid")]


def test_an_empty_text_is_not_sent_back() -> None:
    """The provider sends empty texts, but refuses to receive them."""
    asking = message(text(""), call("a", "look", where="box"))
    with Provider([whole(asking), whole(DONE)]) as provider:
        events_of(provider, tools=[look], stream=False)
    assert provider.requests[1]["messages"][1]["content"] == [call("a", "look", where="box")]


def test_a_line_without_end() -> None:
    """A stream that never ends a line is limited like any other."""
    endless = Sent((b"data: ", b"x" * 10_000_000), headers=STREAM)
    with pytest.MonkeyPatch.context() as patch, Provider([endless]) as provider:
        patch.setattr(attempt, "ANSWER_BYTES_MAX", 1_000_000)
        result = result_of(events_of(provider))
    assert "continues after 1,000,000 bytes" in str(result.error_text)


def test_an_error_of_the_sdk_inside_a_tool() -> None:
    """Any exception in a tool is the tool's failure, including errors of an SDK that it uses."""

    @tool(read_only=True)
    def verify() -> None:
        """Verify."""
        raise AnthropicError("install anthropic[webhooks]")

    with Provider([streamed(message(call("a", "verify"))), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[verify])
    assert done(events) == [("a", "failed")]


@pytest.mark.parametrize("answer", [None, "yes", 1, Reply(allow="no")])  # type: ignore[arg-type]
def test_a_person_who_answers_nonsense(answer: Any) -> None:
    """Every answer except a plain yes is a no."""

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    with Provider([streamed(message(call("a", "write"))), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[write], permissions=Permissions(), world={"person": lambda _: answer}
        )
    assert done(events) == [("a", "denied")]


@pytest.mark.parametrize(
    "error", [SystemExit(), asyncio.CancelledError(), RuntimeError("x" * 10**7)]
)
def test_a_person_who_cannot_be_asked(error: BaseException) -> None:
    """If the approval request raises, the answer is no, and the run continues."""

    async def person(_: Any) -> bool:
        raise error

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    with Provider([streamed(message(call("a", "write"))), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[write], permissions=Permissions(), world={"person": person}
        )
    assert done(events) == [("a", "denied")]
    assert result_of(events).subtype == "success"


def test_words_that_cannot_be_sent() -> None:
    """Lone surrogates are replaced, and empty messages are not passed on."""
    inbox = Inbox()
    inbox.follow_up("  ")
    inbox.follow_up("half \ud83d")
    with Provider([streamed(DONE), streamed(DONE)]) as provider:
        events_of(provider, world={"inbox": inbox})
    assert provider.requests[1]["messages"][-1]["content"] == [text("half ?")]
