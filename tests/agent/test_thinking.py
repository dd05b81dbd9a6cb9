"""An agent's thinking goes back unchanged where it may, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from agentobs.agent import Adaptive, Budgeted, Conversation, Result, ThinkingCleared, run, tool
from agentobs.agent.model.thinking import THINKING, Thinking, without_thinking
from agentobs.agent.state import State, request
from agentobs.errors import UsageError
from agentobs.provider.anthropic.messages import fault
from agentobs.records.exchanges import WorldExchange
from agentobs.records.facts import Event
from tests.wire.corpus import HINT, Exchange, files, folder, read

from .provider import Provider, Reply, call, message, streamed, text
from .scene import events_of, in_loop, of_kind, options, recorded, result_of, ticking_world

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}
CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}
DONE = streamed(message(text("Done.")))
HOUR_NS = 3600 * 10**9


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return "nothing"


def test_without_thinking_a_conversation_stays_valid() -> None:
    """Both types of thinking are removed, including responses of only thinking; the rest is unchanged."""
    first, results = said("user", {"type": "text", "text": "Add."}), said("user", RESULT)
    messages = [
        first,
        said("assistant", THOUGHT, HIDDEN, CALL),
        results,
        said("assistant", THOUGHT),
        said("user", {"type": "text", "text": "Well?"}),
        {"role": "assistant", "content": "3"},
    ]
    bare = without_thinking(messages)
    assert bare == (first, said("assistant", CALL), results, messages[4], messages[5])
    assert bare[0] is first
    assert fault(bare) is None
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
def test_how_thinking_is_asked_for(thinking: Thinking | None, fields: dict[str, Any]) -> None:
    """Adaptive or with a budget, with or without an effort: whole bodies."""
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


def test_an_effort_stands_beside_what_the_output_has_to_be_like() -> None:
    """Both are fields of one object of the request."""
    shape = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    with Provider([DONE]) as provider:
        events_of(provider, thinking=Adaptive("high"), extra=shape)
    [asked] = provider.requests
    assert asked["output_config"] == {"effort": "high", **shape["output_config"]}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"thinking": Budgeted(1000)}, "the minimum is 1024"),
        ({"thinking": Budgeted(4000)}, "Raise max_tokens above 4000"),
        ({"thinking": Budgeted(9000)}, "the whole response is limited to 4000"),
        ({"thinking": Adaptive(), "extra": {"tool_choice": {"type": "any"}}}, "tool_choice is any"),
        (
            {"thinking": Budgeted(1024), "extra": {"tool_choice": {"type": "tool", "name": "a"}}},
            "tool_choice is tool",
        ),
        (
            {"thinking": Adaptive(), "extra": {"temperature": 0}},
            "not supported with thinking on: temperature",
        ),
        ({"thinking": Adaptive(), "extra": {"top_k": 1}}, "not supported with thinking on: top_k"),
        ({"thinking": Adaptive(), "extra": {"thinking": {"type": "disabled"}}}, "set twice"),
    ],
)
def test_what_the_provider_refuses_is_not_sent(wrong: dict[str, Any], why: str) -> None:
    """One clear error before anything starts."""
    with Provider([]) as provider, pytest.raises(UsageError, match=why):
        events_of(provider, **{"max_tokens": 4000, **wrong})
    assert provider.requests == []


@pytest.mark.parametrize(
    "right",
    [
        {"thinking": Budgeted(9000), "betas": ("interleaved-thinking-2025-05-14",)},
        {"thinking": Adaptive(), "extra": {"tool_choice": {"type": "auto"}, "temperature": 1}},
        {"thinking": Adaptive(), "extra": {"tool_choice": {"type": "none"}, "top_p": 0.97}},
        {"thinking": None, "extra": {"tool_choice": {"type": "any"}, "temperature": 0}},
    ],
)
def test_what_the_provider_takes_is_sent(right: dict[str, Any]) -> None:
    """Between tools the budget covers the whole turn; tool choices that leave the model free are compatible."""
    with Provider([DONE]) as provider:
        assert result_of(events_of(provider, max_tokens=4000, **right)).subtype == "success"


def test_what_is_held_and_does_not_fit_is_an_error() -> None:
    """A latched budget and a lower response limit: the run ends with a clear error, and nothing is sent."""
    talk = Conversation()
    with Provider([DONE]) as provider:
        events_of(provider, conversation=talk, thinking=Budgeted(2000), max_tokens=4000)
        result = result_of(events_of(provider, conversation=talk, max_tokens=1500))
    assert result.terminal_reason == "internal_error"
    assert "2000 tokens" in str(result.error_text)
    assert len(provider.requests) == 1


def test_thinking_is_never_last() -> None:
    """A response that ends with thinking goes back without it; one of only thinking is left out."""
    messages = (
        said("user", text("Hello")),
        said("assistant", THOUGHT, text("Hi."), THOUGHT, HIDDEN),
        said("user", text("Well?")),
        said("assistant", THOUGHT),
        said("user", text("Well??")),
    )
    made = request(State("awaiting_model", messages, 1, 0, 0, "start"), options(), [])
    assert made["messages"] == [
        messages[0],
        said("assistant", THOUGHT, text("Hi.")),
        messages[2],
        messages[4],
    ]
    assert fault(made["messages"]) is None


def thought_in(exchange: Exchange) -> list[dict[str, Any]]:
    """The thinking of a response, read directly from its file, if something follows it."""
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


@pytest.mark.skipif(not (folder() / "manifest.json").is_file(), reason=HINT.format(folder()))
def test_real_thinking_goes_back_byte_by_byte() -> None:
    """Signatures, readable, omitted and redacted thinking of recorded responses are sent back unchanged."""
    names = sorted({*files("thinking"), *files("redacted_thinking")})
    listed = [e for name in names for e in read(name).exchanges]
    answers = [e for e in listed if e.asks_model and e.status == 200]
    answers = [e for e in answers if e.message is not None and thought_in(e)]
    # A response that was cut at its limit causes a repeated request.
    answers = [e for e in answers if e.message and e.message["stop_reason"] != "max_tokens"]
    # All redacted ones, and every fourth of the others, because each needs its own client.
    hidden = [e for e in answers if "redacted_thinking" in {b["type"] for b in thought_in(e)}]
    answers = [*hidden, *answers[::4]]
    kinds = {block["type"] for e in answers for block in thought_in(e)}
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
            talk = Conversation()
            events_of(provider, conversation=talk, stream=exchange.is_stream, max_turns=1)
            events_of(provider, "Go on", conversation=talk)
            echoed = [m for m in provider.requests[-1]["messages"] if m["role"] == "assistant"]
            back = [block for block in echoed[0]["content"] if block["type"] in THINKING]
            assert back == thought_in(exchange)


def asked_at(
    provider: Provider, talk: Conversation, hours: float, prompt: str = "Hello"
) -> list[Any]:
    """Run an agent with a constant clock, this many hours after its start."""

    async def collect() -> list[Any]:
        async with provider.client() as client:
            world = dataclasses.replace(
                ticking_world(client, [look]), now=lambda: int(hours * HOUR_NS)
            )
            running = run(prompt, world=world, options=options(), tools=[look], conversation=talk)
            return [event async for event in running]

    return in_loop(collect())


def test_after_an_hour_thinking_is_gone_for_good() -> None:
    """An hour after the last response the thinking of earlier turns is removed, once and permanently."""
    talk = Conversation()
    looked = [streamed(message(THOUGHT, HIDDEN, call(each, "look", where="x"))) for each in "ab"]
    answer = streamed(message(THOUGHT, text("Done.")))
    with (
        Provider([looked[0], answer, looked[1], answer, answer]) as provider,
        recorded() as records,
    ):
        events = [asked_at(provider, talk, 0.0), asked_at(provider, talk, 1.0, "Again")]
        events.append(asked_at(provider, talk, 1.99, "And again"))
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
    told = [r for r in records if isinstance(r, Event) and r.kind == "thinking_cleared"]
    assert [(r.turn, dict(r.numbers)) for r in told] == [(3, {"blocks": 3})]
    asked = [r for r in records if isinstance(r, WorldExchange) and r.question.kind == "elapsed"]
    assert [(r.question.key, r.answer) for r in asked] == [("3:thinking", True)]


def test_thinking_stays_while_tools_answer() -> None:
    """However long a tool takes, thinking since the last user message stays, because the provider requires it."""
    talk = Conversation(thought_ns=0)
    talk.messages = (
        said("user", text("Hello")),
        said("assistant", THOUGHT, text("Hi.")),
        said("user", text("Look.")),
        said("assistant", THOUGHT, call("a", "look", where="x")),
    )
    with Provider([DONE]) as provider:
        asked_at(provider, talk, 5.0, "Go on")
    [asked] = provider.requests
    assert [len(m["content"]) for m in asked["messages"] if m["role"] == "assistant"] == [1, 2]
    assert fault(asked["messages"]) is None
