"""Thinking is sent back unchanged if the provider requires it, and is removed otherwise."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from agentobs.agent import Adaptive, Budgeted, Conversation, Result, ThinkingCleared, run, tool
from agentobs.agent.model.thinking import THINKING, Thinking, without_thinking
from agentobs.agent.state import State, request_arguments
from agentobs.errors import UsageError
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.records.exchanges import WorldExchange
from agentobs.records.facts import Event
from tests.wire.corpus import HINT, Exchange, files, folder, read

from .agent_runs import events_of, in_loop, of_kind, options, recorded, result_of, ticking_world
from .provider import Provider, Reply, call, message, streamed, text

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}
DONE = streamed(message(text("Done.")))
HOUR_NS = 3600 * 10**9


def chat_message(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return "nothing"


def test_a_conversation_without_its_thinking_is_valid() -> None:
    """If both types of thinking blocks are removed from a conversation, it is valid and otherwise unchanged; responses
    of only thinking are removed.
    """
    first, results = (
        chat_message("user", {"type": "text", "text": "Add."}),
        chat_message("user", RESULT),
    )
    messages = [
        first,
        chat_message("assistant", THOUGHT, HIDDEN, CALL),
        results,
        chat_message("assistant", THOUGHT),
        chat_message("user", {"type": "text", "text": "Well?"}),
        {"role": "assistant", "content": "3"},
    ]
    bare = without_thinking(messages)
    assert bare == (first, chat_message("assistant", CALL), results, messages[4], messages[5])
    assert bare[0] is first
    assert conversation_error(bare) is None
    assert without_thinking(bare) == bare


@pytest.mark.parametrize(
    ("thinking", "fields"),
    [
        (None, {}),
        (Adaptive(), {"thinking": {"type": "adaptive"}}),
        (
            Adaptive("xhigh", "omitted"),
            {
                "thinking": {"type": "adaptive", "display": "omitted"},
                "output_config": {"effort": "xhigh"},
            },
        ),
        (Budgeted(1024), {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (
            Budgeted(2000, "low"),
            {
                "thinking": {"type": "enabled", "budget_tokens": 2000},
                "output_config": {"effort": "low"},
            },
        ),
    ],
)
def test_thinking_in_request_bodies(thinking: Thinking | None, fields: dict[str, Any]) -> None:
    """Thinking in a request body is adaptive or has a budget, and effort is a separate field."""
    with Provider([DONE]) as provider:
        result_of(events_of(provider, thinking=thinking, max_tokens=4000, stream=False))
    assert provider.requests == [
        {
            "model": "claude-test-1",
            "max_tokens": 4000,
            "messages": [{"role": "user", "content": "Hello"}],
            **fields,
        }
    ]


def test_effort_and_output_format_are_combined() -> None:
    """Effort and output format are fields of the same object in a request."""
    shape = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    with Provider([DONE]) as provider:
        events_of(provider, thinking=Adaptive("high"), extra=shape)
    [request] = provider.requests
    assert request["output_config"] == {"effort": "high", **shape["output_config"]}


@pytest.mark.parametrize(
    ("incompatible", "error_part"),
    [
        ({"thinking": Budgeted(1000)}, "the minimum is 1024"),
        ({"thinking": Budgeted(4000)}, "Raise max_tokens above 4000"),
        ({"thinking": Budgeted(9000)}, "but the response is limited to 4000"),
        ({"thinking": Adaptive(), "extra": {"tool_choice": {"type": "any"}}}, "tool_choice is any"),
        (
            {"thinking": Budgeted(1024), "extra": {"tool_choice": {"type": "tool", "name": "a"}}},
            "tool_choice is tool",
        ),
        (
            {"thinking": Adaptive(), "extra": {"temperature": 0}},
            "not supported if thinking is enabled: temperature",
        ),
        (
            {"thinking": Adaptive(), "extra": {"top_k": 1}},
            "not supported if thinking is enabled: top_k",
        ),
        ({"thinking": Adaptive(), "extra": {"thinking": {"type": "disabled"}}}, "set both in"),
    ],
)
def test_incompatible_options_are_rejected(incompatible: dict[str, Any], error_part: str) -> None:
    """Incompatible options raise one clear error before anything starts."""
    with Provider([]) as provider, pytest.raises(UsageError, match=error_part):
        events_of(provider, **{"max_tokens": 4000, **incompatible})
    assert provider.requests == []


@pytest.mark.parametrize(
    "compatible",
    [
        {"thinking": Budgeted(9000), "betas": ("interleaved-thinking-2025-05-14",)},
        {"thinking": Adaptive(), "extra": {"tool_choice": {"type": "auto"}, "temperature": 1}},
        {"thinking": Adaptive(), "extra": {"tool_choice": {"type": "none"}, "top_p": 0.97}},
        {"thinking": None, "extra": {"tool_choice": {"type": "any"}, "temperature": 0}},
    ],
)
def test_compatible_options_are_sent(compatible: dict[str, Any]) -> None:
    """A budget may exceed the response limit if thinking is interleaved with tools, and tool choices that force no call
    are compatible with thinking.
    """
    with Provider([DONE]) as provider:
        assert result_of(events_of(provider, max_tokens=4000, **compatible)).subtype == "success"


def test_a_latched_budget_that_does_not_fit_is_an_error() -> None:
    """If a latched thinking budget does not fit a lowered response limit, the run ends with a clear error, and no
    request is sent.
    """
    conversation = Conversation()
    with Provider([DONE]) as provider:
        events_of(provider, conversation=conversation, thinking=Budgeted(2000), max_tokens=4000)
        result = result_of(events_of(provider, conversation=conversation, max_tokens=1500))
    assert result.terminal_reason == "internal_error"
    assert "2000 tokens" in str(result.error_text)
    assert len(provider.requests) == 1


def test_thinking_is_never_last() -> None:
    """Thinking at the end of a response is not sent back, and a response of only thinking is omitted."""
    messages = (
        chat_message("user", text("Hello")),
        chat_message("assistant", THOUGHT, text("Hi."), THOUGHT, HIDDEN),
        chat_message("user", text("Well?")),
        chat_message("assistant", THOUGHT),
        chat_message("user", text("Well??")),
    )
    arguments = request_arguments(
        State("awaiting_model", messages, 1, 0, 0, "start"), options(), []
    )
    assert arguments["messages"] == [
        messages[0],
        chat_message("assistant", THOUGHT, text("Hi.")),
        messages[2],
        messages[4],
    ]
    assert conversation_error(arguments["messages"]) is None


def recorded_thinking(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the thinking of a recorded response if other content follows it."""
    if not exchange.is_stream:
        content = json.loads(exchange.text)["content"]
    else:
        content = []
        for event in exchange.events:
            if event["type"] == "content_block_start":
                content.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta":
                block, delta = content[event["index"]], event["delta"]
                if delta["type"] == "thinking_delta":
                    block["thinking"] += delta["thinking"]
                elif delta["type"] == "signature_delta":
                    block["signature"] = delta["signature"]
    while content and content[-1]["type"] in THINKING:
        content.pop()
    return [block for block in content if block["type"] in THINKING]


@pytest.mark.slow
@pytest.mark.skipif(not (folder() / "manifest.json").is_file(), reason=HINT.format(folder()))
def test_recorded_thinking_is_sent_back_unchanged() -> None:
    """The thinking of recorded responses is sent back unchanged, with its signature, whether it is readable, omitted or
    redacted.
    """
    names = sorted({*files("thinking"), *files("redacted_thinking")})
    listed = [e for name in names for e in read(name).exchanges]
    answers = [e for e in listed if e.is_model_request and e.status == 200]
    answers = [e for e in answers if e.message is not None and recorded_thinking(e)]
    # A truncated response causes another request.
    answers = [e for e in answers if e.message and e.message["stop_reason"] != "max_tokens"]
    # Each response needs its own client, so use all responses with redacted thinking and a quarter of the others.
    hidden = [
        e for e in answers if "redacted_thinking" in {b["type"] for b in recorded_thinking(e)}
    ]
    answers = [*hidden, *answers[::4]]
    kinds = {block["type"] for e in answers for block in recorded_thinking(e)}
    assert len(answers) > 15
    assert kinds == THINKING
    replies = []
    for exchange in answers:
        kind = "text/event-stream" if exchange.is_stream else "application/json"
        replies.append(Reply((exchange.text.encode(),), headers={"content-type": kind}))
        assert exchange.message
        is_paused = (
            exchange.message["stop_reason"] == "pause_turn"
        )  # the loop continues automatically
        replies += [DONE] * (1 + is_paused)
    with Provider(replies) as provider:
        for exchange in answers:
            conversation = Conversation()
            events_of(provider, conversation=conversation, stream=exchange.is_stream, max_turns=1)
            events_of(provider, "Go on", conversation=conversation)
            echoed = [m for m in provider.requests[-1]["messages"] if m["role"] == "assistant"]
            sent_back = [block for block in echoed[0]["content"] if block["type"] in THINKING]
            assert sent_back == recorded_thinking(exchange)


def run_after(
    provider: Provider, conversation: Conversation, hours: float, prompt: str = "Hello"
) -> list[Any]:
    """Run an agent with a fixed clock, this many hours after the start of the conversation."""

    async def collect() -> list[Any]:
        async with provider.client() as client:
            world = dataclasses.replace(
                ticking_world(client, [look]), now=lambda: int(hours * HOUR_NS)
            )
            running = run(
                prompt, world=world, options=options(), tools=[look], conversation=conversation
            )
            return [event async for event in running]

    return in_loop(collect())


def test_thinking_is_removed_after_an_hour() -> None:
    """An hour after the last response, the thinking of earlier turns is removed permanently."""
    conversation = Conversation()
    look_replies = [
        streamed(message(THOUGHT, HIDDEN, call(each, "look", where="x"))) for each in "ab"
    ]
    answer = streamed(message(THOUGHT, text("Done.")))
    with (
        Provider([look_replies[0], answer, look_replies[1], answer, answer]) as provider,
        recorded() as records,
    ):
        events = [
            run_after(provider, conversation, 0.0),
            run_after(provider, conversation, 1.0, "Again"),
        ]
        events.append(run_after(provider, conversation, 1.99, "And again"))
    assert all(isinstance(each[-1], Result) and each[-1].subtype == "success" for each in events)
    assert [[(e.turn, e.blocks) for e in of_kind(each, ThinkingCleared)] for each in events] == [
        [],
        [(3, 3)],
        [],
    ]
    thoughts = [
        [sum(b["type"] in THINKING for b in m["content"]) for m in r["messages"] if m["role"] == "assistant"]
        for r in provider.requests
    ]  # fmt: skip
    assert thoughts == [[], [2], [0, 0], [0, 0, 2], [0, 0, 2, 1]]
    facts = [r for r in records if isinstance(r, Event) and r.kind == "thinking_cleared"]
    assert [(r.turn, dict(r.numbers)) for r in facts] == [(3, {"blocks": 3})]
    exchanges = [
        r for r in records if isinstance(r, WorldExchange) and r.question.kind == "elapsed"
    ]
    assert [(r.question.key, r.answer) for r in exchanges] == [("3:thinking", True)]


def test_thinking_is_kept_until_tools_have_results() -> None:
    """However long a tool takes, the thinking since the last user message is kept, because the provider requires it."""
    conversation = Conversation(thought_ns=0)
    conversation.messages = (
        chat_message("user", text("Hello")),
        chat_message("assistant", THOUGHT, text("Hi.")),
        chat_message("user", text("Look.")),
        chat_message("assistant", THOUGHT, call("a", "look", where="x")),
    )
    with Provider([DONE]) as provider:
        run_after(provider, conversation, 5.0, "Go on")
    [request] = provider.requests
    assert [len(m["content"]) for m in request["messages"] if m["role"] == "assistant"] == [1, 2]
    assert conversation_error(request["messages"]) is None
