"""At 80% and 95% of the context window, the run reports it; at 95% it compacts, and at last drops the oldest parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from agentobs.agent import (
    Compaction,
    Context,
    ContextExceeded,
    ContextLevel,
    Event,
    Hook,
    HookRan,
)
from agentobs.agent.context.reduction import DROPPED, TRIMMED, drop_oldest, trim_oldest
from agentobs.agent.context.token_counts import estimate
from agentobs.agent.context.window_policy import reached_level
from agentobs.provider.anthropic.messages import request_error, tool_results, tool_uses
from agentobs.records.facts import Event as Fact
from tests.agent.agent_objects import agent, play, recorded_and_replayed
from tests.agent.agent_runs import of_kind, recorded, result_of
from tests.agent.provider import Provider, Reply, call, error, text
from tests.agent.provider import message as message_of

from .long_conversations import THOUGHT, look, peek, response_of

WINDOW = Context(window_tokens=10_000, summary_tokens=100, reserve_tokens=100, kept_results=1)
"""A context whose threshold, 9,800 tokens, is above 95% of the window."""
OFF = Context(window_tokens=10_000, summary_tokens=100, reserve_tokens=100, is_automatic=False)
REFUSED = error(400, "invalid_request_error", text="no")
TOO_LONG = error(400, "invalid_request_error", text="prompt is too long")
OVERLOADED = error(529, "overloaded_error", retry="false")


def looks(*tokens: int) -> list[Reply]:
    """Return responses that read a long file; their usage states how long the conversation is."""
    return [
        response_of(count, THOUGHT, call(f"toolu_{n}", "look", where=f"{n}.txt"))
        for n, count in enumerate(tokens, 1)
    ]


def writes(*tokens: int) -> list[Reply]:
    """Return responses with so much text that no tool result can be trimmed."""
    return [
        response_of(count, text("z" * 3600), call(f"toolu_{n}", "peek", where=f"{n}"))
        for n, count in enumerate(tokens, 1)
    ]


class Asking:
    """Runs an agent with a context; `failures` is the number of compactions that have failed before."""

    def __init__(self, context: Context = WINDOW, *, failures: int = 0, **parts: Any) -> None:
        self.context, self.failures, self.parts = context, failures, parts

    async def __call__(self, client: AsyncAnthropic) -> list[Event]:
        parts = {"tools": [look, peek], **self.parts}
        asked = agent(client, parts=parts, context=self.context, max_retries=0)
        asked.conversation.context.failures = self.failures
        return [event async for event in asked.stream("Go")]


DONE = response_of(3000, text("Done."))


def levels(events: list[Event]) -> list[tuple[int, int, str]]:
    return [(e.turn, e.percent, e.reaction) for e in of_kind(events, ContextLevel)]


def compactions(events: list[Event]) -> list[tuple[str, tuple[str, ...]]]:
    return [(e.trigger, e.methods) for e in of_kind(events, Compaction)]


@pytest.mark.slow
def test_a_compaction_is_forced_at_95_percent(tmp_path: Path) -> None:
    """80% is reported once; at 95%, the conversation is compacted although it is below the threshold.

    Hooks for notifications run. A replay reports and compacts at the same turns.
    """
    seen: list[dict[str, Any]] = []
    hook = Hook("notification", lambda payload: seen.append(payload), name="notice")
    provider = Provider([*looks(5000, 7900, 8200, 9000), DONE])
    events = recorded_and_replayed(tmp_path, provider, Asking(hooks=[hook]))
    assert levels(events) == [(3, 80, "none"), (5, 95, "compaction")]
    [first, second] = of_kind(events, ContextLevel)
    assert (first.window_tokens, second.tokens) == (10_000, 9717)
    assert compactions(events) == [("auto", ("trim",))]
    assert [e.hook for e in of_kind(events, HookRan)] == ["notice", "notice"]
    assert [(each["kind"], each["reason"]) for each in seen] == [
        ("context", "The conversation takes up 80% of the context window."),
        ("context", "The conversation takes up 95% of the context window."),
    ]
    assert result_of(events).text == "Done."


def test_levels_are_facts() -> None:
    """The store gets the share, the length and what follows."""
    with Provider([*looks(9400), DONE]) as provider, recorded() as records:
        play(provider, Asking(OFF))
    found = [r for r in records if isinstance(r, Fact) and r.kind == "context_level"]
    assert [(r.label, dict(r.numbers)) for r in found] == [
        ("off", {"percent": 95, "tokens": 10117, "window": 10_000})
    ]


def test_a_share_is_reported_again_after_the_conversation_was_shorter() -> None:
    """After a compaction, the same share is reported when it is reached again."""
    turns = looks(9400, 3000, 7600)
    with Provider([*turns, DONE]) as provider:
        events = play(provider, Asking())
    assert [(turn, percent) for turn, percent, _ in levels(events)] == [(2, 95), (4, 80)]


def test_compaction_that_is_off() -> None:
    """If automatic compaction is off, the event reports this, and the request is sent unchanged."""
    with Provider([*looks(8000, 9500), DONE]) as provider:
        events = play(provider, Asking(OFF))
    assert levels(events) == [(2, 80, "off"), (3, 95, "off")]
    assert compactions(events) == []
    assert TRIMMED not in str(provider.requests[-1])


def test_the_oldest_results_are_dropped_after_compaction_was_given_up(tmp_path: Path) -> None:
    """If compaction was given up, only as many of the oldest results are trimmed as necessary."""
    provider = Provider([*looks(3000, 6000, 9000), DONE])
    events = recorded_and_replayed(tmp_path, provider, Asking(failures=3))
    assert levels(events) == [(4, 95, "emergency")]
    assert compactions(events) == [("emergency", ("trim",))]
    contents = [
        each["content"] for m in provider.requests[-1]["messages"] for each in tool_results(m)
    ]
    assert [content.startswith(TRIMMED) for content in contents] == [True, False, False]
    [compaction] = of_kind(events, Compaction)
    assert compaction.tokens_after < 9500 <= compaction.tokens_before
    assert result_of(events).text == "Done."


def test_the_oldest_messages_are_dropped_if_no_summary_is_available(tmp_path: Path) -> None:
    """If the summary is refused, the oldest groups are dropped; the first prompt and all pairs stay."""
    provider = Provider([*writes(4000, 9600), REFUSED, DONE])
    events = recorded_and_replayed(tmp_path, provider, Asking())
    assert levels(events) == [(3, 95, "compaction")]
    assert compactions(events) == [("emergency", ("drop",))]
    messages = provider.requests[-1]["messages"]
    assert [block["text"] for block in messages[0]["content"]] == ["Go", DROPPED]
    called = [each["id"] for m in messages for each in tool_uses(m)]
    assert called == [each["tool_use_id"] for m in messages for each in tool_results(m)] != []
    assert result_of(events).text == "Done."


@pytest.mark.parametrize("is_vetoed", [True, False])
def test_no_emergency_after_a_veto_or_an_outage(is_vetoed: bool) -> None:
    """A hook that prevents the compaction also prevents the emergency method; so does an outage of the provider."""

    def veto(payload: dict[str, Any]) -> dict[str, str]:
        return {"outcome": "blocking", "reason": "keep everything"}

    hooks = [Hook("pre_compact", veto)] if is_vetoed else []
    replies = [*writes(4000, 9600), *([] if is_vetoed else [OVERLOADED]), DONE]
    with Provider(replies) as provider:
        events = play(provider, Asking(hooks=hooks))
    assert levels(events) == [(3, 95, "compaction")]
    assert compactions(events) == []
    assert result_of(events).text == "Done."


def test_a_conversation_that_cannot_be_shortened() -> None:
    """If nothing can be dropped, the request is sent as it is, and the run ends with the refusal of the provider."""

    async def ask(client: AsyncAnthropic) -> list[Event]:
        asked = agent(client, context=WINDOW, max_retries=0)
        return [event async for event in asked.stream("y" * 40_000)]

    with Provider([TOO_LONG]) as provider, recorded() as records:
        events = play(provider, ask)
    assert [each[1] for each in levels(events)] == [95]
    assert compactions(events) == []
    failed = [r for r in records if isinstance(r, Fact) and r.kind == "compaction_failed"]
    assert [r.label for r in failed] == ["auto", "emergency", "reactive"]
    with pytest.raises(ContextExceeded):
        result_of(events).raise_for_error()


def test_an_emergency_does_not_enable_compaction_again() -> None:
    """The emergency method is not a success of compaction, so its failures still count."""

    async def ask(client: AsyncAnthropic) -> list[Event]:
        asked = agent(client, parts={"tools": [look]}, context=WINDOW)
        asked.conversation.context.failures = 3
        events = [event async for event in asked.stream("Go")]
        assert asked.conversation.context.failures == 3
        return events

    with Provider([*looks(3000, 6000, 9000), DONE]) as provider:
        assert compactions(play(provider, ask)) == [("emergency", ("trim",))]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (799, 0), (800, 80), (949, 80), (950, 95), (2000, 95)]
)
def test_the_level_of_a_length(tokens: int, expected: int) -> None:
    """A share is reached at exactly its percentage of the window."""
    assert reached_level(tokens, 1000) == expected


def test_the_oldest_parts_go_first() -> None:
    """For any number of tokens, the result is a valid conversation that is shorter by that number, if possible."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go"}]
    for n in range(6):
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": "y" * 2000}
        messages += [
            message_of(text("z" * 1000), call(f"t{n}", "look", where="x")),
            {"role": "user", "content": [result]},
        ]
    plain = [{"role": m["role"], "content": m["content"]} for m in messages]
    size = estimate(plain)
    for tokens in range(0, size, 97):
        for shorten in (trim_oldest, drop_oldest):
            shortened = shorten(plain, tokens)
            assert request_error({"messages": list(shortened)}) is None
            assert size - estimate(shortened) >= tokens or shortened == shorten(plain, 10 * size)
            assert shortened[-1] == plain[-1] or shorten is trim_oldest
    assert list(trim_oldest(plain, 0)) == list(drop_oldest(plain, 0)) == plain
