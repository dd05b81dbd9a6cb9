"""Real recordings: the provider's own compactions, its refusals, and the real lengths of prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentobs.agent.agent_run import Run
from agentobs.agent.compaction.compaction import length
from agentobs.agent.context import token_counts
from agentobs.agent.context.context_windows import LARGE, LARGE_TOKENS, WINDOW_TOKENS, window_of
from agentobs.agent.events import Compaction, RequestStart
from agentobs.agent.state import Conversation, begin
from agentobs.provider.anthropic.streams import assemble
from tests.agent.provider import Provider, Reply, message, streamed, text
from tests.agent.scene import events_of, in_loop, of_kind, options, result_of, ticking_world
from tests.wire import corpus
from tests.wire.corpus import Exchange

recorded = pytest.mark.skipif(
    not (corpus.folder() / "manifest.json").is_file(), reason=corpus.HINT.format(corpus.folder())
)
"""The tests of recorded traffic need its folder."""


OF_PYDANTIC = "pydantic__pydantic-ai/test_anthropic_test_anthropic_compaction"
OF_RUBY = "crmne__ruby_llm/chat_real_error_scenarios_anthropic_claude"
SUMMARY = streamed(message(text("They said hello."), usage={"input_tokens": 9, "output_tokens": 5}))
DONE = streamed(message(text("Done.")))


def exchanges(tag: str, begins: str) -> list[Exchange]:
    names = [name for name in corpus.files(tag) if name.startswith(begins)]
    assert names
    return [exchange for name in names for exchange in corpus.read(name).exchanges]


def sent(exchange: Exchange) -> Reply:
    """The recorded response, byte for byte."""
    kind = "text/event-stream" if exchange.is_stream else "application/json"
    return Reply((exchange.text.encode(),), exchange.status, {"content-type": kind})


@recorded
def test_what_the_provider_made_shorter_goes_back_as_it_came() -> None:
    """A block of the provider's own compaction is sent back, and everything that it replaces is no longer counted."""
    first, second = exchanges("compaction", OF_PYDANTIC + "_end_to_end")
    talk = Conversation()
    extra = {"context_management": first.body["context_management"]}
    with Provider([sent(first), sent(second)]) as provider:
        asked: Any = {
            "model": first.body["model"],
            "stream": False,
            "extra": extra,
            "conversation": talk,
        }
        events = events_of(provider, first.messages[0]["content"], **asked)
        assert length(following(talk, "What did I ask you to do?"), ()) < 250
        events += events_of(provider, "What did I ask you to do?", **asked)
    assert provider.requests[1]["messages"][1] == second.messages[1]
    assert not of_kind(events, Compaction)
    assert token_counts.covered(talk.messages) == 1
    assert token_counts.estimate(talk.messages) < 250 < token_counts.estimate(talk.messages[:1])
    assert talk.context.counted is not None
    assert talk.context.counted.tokens == 239 + 10


def following(talk: Conversation, prompt: str) -> Run:
    """The run that would continue a conversation."""

    async def made() -> Run:
        with Provider([]) as provider:
            async with provider.client() as client:
                state = begin(talk, prompt)
                return Run(ticking_world(client), options(), (), None, talk, state, 0)

    return in_loop(made())


@recorded
@pytest.mark.parametrize("tag", ["usage.iterations", "compaction"])
def test_usage_of_several_rounds_tells_how_long_the_conversation_is(tag: str) -> None:
    """If a response took several iterations, the last one counts, not their sum."""
    for name in corpus.files(tag):
        for exchange in corpus.read(name).exchanges:
            usage = (exchange.message or {}).get("usage") or {}
            if not usage.get("iterations"):
                continue
            last = usage["iterations"][-1]
            parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            expected = sum(last[part] or 0 for part in parts) + last["output_tokens"]
            if str(last["type"]).endswith("message"):
                assert token_counts.held(usage) == expected


@recorded
@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("-haiku-4-5_handles_context_length", 200_000),
        ("-3-5-haiku-20241022_handles_context_length", None),
    ],
)
def test_a_prompt_that_was_refused_as_too_long(name: str, window: int | None) -> None:
    """After a recorded refusal the conversation is compacted and the request repeated; the reported
    window is kept.

    The recorder had replaced its texts of 1 or 2 million characters each with placeholders; here
    they are shorter.
    """
    (refused,) = [e for e in exchanges("status_400", OF_RUBY + name) if e.status == 400]
    said = json.loads(json.dumps(refused.messages).replace("<MASSIVE_TEXT>", "massive " * 4000))
    talk = Conversation(messages=tuple(said[:-1]), turns=5)
    with Provider([sent(refused), SUMMARY, DONE]) as provider:
        events = events_of(provider, said[-1]["content"], conversation=talk)
    (done,) = of_kind(events, Compaction)
    assert (done.trigger, done.methods[-1]) == ("reactive", "summary")
    assert done.tokens_after < done.threshold
    starts = [event.transition for event in of_kind(events, RequestStart)]
    assert starts == ["start", "reactive_compaction"]
    assert result_of(events).text == "Done."
    assert talk.context.window_told == window
    assert provider.requests[2]["messages"][-1]["content"][-1] == said[-1]["content"][-1]


@recorded
def test_estimates_on_real_prompts() -> None:
    """Recorded prompts of a thousand tokens or more without media or server tools are rarely
    underestimated.

    Nine of ten are estimated at seven tenths of their tokens or more, and none at more than twice.
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
    if not exchange.asks_model or exchange.status != 200 or "MASSIVE" in json.dumps(body):
        return None
    if any(
        kind in json.dumps(body) for kind in ('"image"', '"document"', "_2025", "_2026", "_2024")
    ):
        return None
    headers = {"content-type": "text/event-stream" if exchange.is_stream else "application/json"}
    usage = assemble(headers, exchange.text.encode()).get("usage") or {}
    held = token_counts.held(usage)
    if held is None or usage.get("iterations"):
        return None
    prompt = held - token_counts.output_tokens(usage)
    around = token_counts.declared(body.get("system"), body.get("tools") or [])
    return (around + token_counts.estimate(exchange.messages)) / prompt if prompt >= 1000 else None


def test_windows_are_those_that_are_listed() -> None:
    """Our table has the windows of the price list, under every name."""
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
