"""Recorded traffic: compactions by the provider, its rejections, and the real lengths of prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentobs.agent.agent_run import Run, RunInputs
from agentobs.agent.compaction.compaction import length
from agentobs.agent.context import token_counts
from agentobs.agent.context.context_windows import LARGE, LARGE_TOKENS, WINDOW_TOKENS, window_of
from agentobs.agent.events import Compaction, RequestStart
from agentobs.agent.state import Conversation, initial_state
from agentobs.provider.anthropic.streams import assemble
from tests.agent.agent_runs import events_of, in_loop, of_kind, options, result_of, ticking_world
from tests.agent.provider import Provider, Reply, message, streamed, text
from tests.wire import corpus
from tests.wire.corpus import Exchange

recorded = pytest.mark.skipif(
    not (corpus.folder() / "manifest.json").is_file(), reason=corpus.HINT.format(corpus.folder())
)
"""Skip the tests if the folder with recorded traffic does not exist."""


OF_PYDANTIC = "pydantic__pydantic-ai/test_anthropic_test_anthropic_compaction"
OF_RUBY = "crmne__ruby_llm/chat_real_error_scenarios_anthropic_claude"
SUMMARY = streamed(message(text("They said hello."), usage={"input_tokens": 9, "output_tokens": 5}))
DONE = streamed(message(text("Done.")))


def exchanges(tag: str, begins: str) -> list[Exchange]:
    names = [name for name in corpus.files(tag) if name.startswith(begins)]
    assert names
    return [exchange for name in names for exchange in corpus.read(name).exchanges]


def sent(exchange: Exchange) -> Reply:
    """Return the recorded response as a reply with identical bytes."""
    kind = "text/event-stream" if exchange.is_stream else "application/json"
    return Reply((exchange.text.encode(),), exchange.status, {"content-type": kind})


@recorded
def test_a_compaction_block_of_the_provider_is_sent_back() -> None:
    """A compaction block of the provider is sent back unchanged, and the messages that it replaces are no longer
    counted.
    """
    first, second = exchanges("compaction", OF_PYDANTIC + "_end_to_end")
    conversation = Conversation()
    extra = {"context_management": first.body["context_management"]}
    with Provider([sent(first), sent(second)]) as provider:
        run_options: Any = {
            "model": first.body["model"],
            "stream": False,
            "extra": extra,
            "conversation": conversation,
        }
        events = events_of(provider, first.messages[0]["content"], **run_options)
        assert length(continuing_run(conversation, "What did I ask you to do?"), ()) < 250
        events += events_of(provider, "What did I ask you to do?", **run_options)
    assert provider.requests[1]["messages"][1] == second.messages[1]
    assert not of_kind(events, Compaction)
    assert token_counts.count_compacted_messages(conversation.messages) == 1
    assert (
        token_counts.estimate(conversation.messages)
        < 250
        < token_counts.estimate(conversation.messages[:1])
    )
    assert conversation.context.counted is not None
    assert conversation.context.counted.tokens == 239 + 10


def continuing_run(conversation: Conversation, prompt: str) -> Run:
    """Return a run that continues the conversation with a prompt."""

    async def create() -> Run:
        with Provider([]) as provider:
            async with provider.client() as client:
                state = initial_state(conversation, prompt)
                return Run(RunInputs(ticking_world(client), options(), (), 0), conversation, state)

    return in_loop(create())


@recorded
@pytest.mark.parametrize("tag", ["usage.iterations", "compaction"])
def test_usage_of_several_iterations(tag: str) -> None:
    """If a response took several iterations, the last iteration, and not the sum of all, is the length of the
    conversation.
    """
    for name in corpus.files(tag):
        for exchange in corpus.read(name).exchanges:
            usage = (exchange.message or {}).get("usage") or {}
            if not usage.get("iterations"):
                continue
            last = usage["iterations"][-1]
            parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            expected = sum(last[part] or 0 for part in parts) + last["output_tokens"]
            if str(last["type"]).endswith("message"):
                assert token_counts.conversation_tokens(usage) == expected


@recorded
@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("-haiku-4-5_handles_context_length", 200_000),
        ("-3-5-haiku-20241022_handles_context_length", None),
    ],
)
def test_a_recorded_rejection_as_too_long(name: str, window: int | None) -> None:
    """After a recorded rejection as too long, the conversation is compacted, the request is repeated, and the reported
    window is stored.

    The recorder had replaced texts of 1 or 2 million characters each with placeholders; this test replaces the
    placeholders with shorter texts.
    """
    (refused,) = [e for e in exchanges("status_400", OF_RUBY + name) if e.status == 400]
    messages = json.loads(json.dumps(refused.messages).replace("<MASSIVE_TEXT>", "massive " * 4000))
    conversation = Conversation(messages=tuple(messages[:-1]), turns=5)
    with Provider([sent(refused), SUMMARY, DONE]) as provider:
        events = events_of(provider, messages[-1]["content"], conversation=conversation)
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods[-1]) == ("reactive", "summary")
    assert done.tokens_after < done.threshold
    starts = [event.transition for event in of_kind(events, RequestStart)]
    assert starts == ["start", "reactive_compaction"]
    assert result_of(events).text == "Done."
    assert conversation.context.reported_window == window
    assert provider.requests[2]["messages"][-1]["content"][-1] == messages[-1]["content"][-1]


@recorded
def test_estimates_on_recorded_prompts() -> None:
    """The tokens of recorded prompts are rarely underestimated, if they have at least a thousand tokens and contain
    neither media nor server tools.

    Nine of ten prompts are estimated at 70% of their tokens or more, and no prompt at more than twice its tokens.
    """
    shares = []
    for name in corpus.files("tools"):
        for exchange in corpus.read(name).exchanges:
            share = estimated_share(exchange)
            if share is not None:
                shares.append(share)
    assert len(shares) > 40
    assert sum(share >= 0.7 for share in shares) >= 0.9 * len(shares)
    assert max(shares) <= 2


def estimated_share(exchange: Exchange) -> float | None:
    body = exchange.body
    if not exchange.is_model_request or exchange.status != 200 or "MASSIVE" in json.dumps(body):
        return None
    if any(
        kind in json.dumps(body) for kind in ('"image"', '"document"', "_2025", "_2026", "_2024")
    ):
        return None
    headers = {"content-type": "text/event-stream" if exchange.is_stream else "application/json"}
    usage = assemble(headers, exchange.text.encode()).get("usage") or {}
    conversation_tokens = token_counts.conversation_tokens(usage)
    if conversation_tokens is None or usage.get("iterations"):
        return None
    prompt = conversation_tokens - token_counts.output_tokens(usage)
    overhead_tokens = token_counts.overhead(body.get("system"), body.get("tools") or [])
    return (
        (overhead_tokens + token_counts.estimate(exchange.messages)) / prompt
        if prompt >= 1000
        else None
    )


def test_context_windows_equal_the_published_values() -> None:
    """Our context windows equal those in the public price list, for every name of a model."""
    from genai_prices.data import providers

    (listed,) = (each for each in providers if each.id == "anthropic")
    known = {m.id: m.context_window for m in listed.models if m.context_window}
    assert {name: window_of(name) for name in known} == known
    assert {window_of(name) for name in LARGE} == {LARGE_TOKENS}
    assert window_of("claude-of-tomorrow-9") == WINDOW_TOKENS
    assert window_of("us.anthropic.claude-opus-4-6-v1:0") == LARGE_TOKENS
    beta = ("context-1m-2025-08-07",)
    assert window_of("claude-sonnet-4-5-20250929", beta) == LARGE_TOKENS
    assert window_of("claude-sonnet-4-20250514", beta) == LARGE_TOKENS
    assert window_of("claude-haiku-4-5", beta) == WINDOW_TOKENS
