"""Fast mode is suspended after a long `retry-after`, and continues when the time has passed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from agentobs import runtime
from agentobs.agent import (
    AgentDefinition,
    AgentOptions,
    Conversation,
    Fallback,
    Retry,
    SettingHeld,
    SpeedChange,
    SubAgent,
    Tool,
    compact,
    live_world,
    run,
    tool,
)
from agentobs.agent.model.error_classes import REACTIONS
from agentobs.agent.model.retry import FAST_WAIT_S, Failure, RetryHistory, RetryPolicy, next_attempt
from agentobs.agent.run_check import check_options
from agentobs.errors import UsageError
from agentobs.records.facts import Event as Fact
from agentobs.world import World

from .agent_objects import agent, asking, play, recorded_and_replayed
from .agent_runs import in_loop, of_kind, options, recorded, result_of
from .provider import MODEL, Provider, Reply, call, error, message, streamed, text

DONE = streamed(message(text("Done.")))
LOOKS = streamed(message(call("t1", "look"), stop_reason="tool_use"))
LIMITED = error(429, "rate_limit_error", retry_after="400")
OVERLOADED = error(529, "overloaded_error", retry_after="60")


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


TOOLS: dict[str, list[Tool]] = {"tools": [look]}


def speeds(provider: Provider) -> list[str | None]:
    return [request.get("speed") for request in provider.requests]


SUSPENDED = [LIMITED, LOOKS, DONE, DONE, DONE]
CHANGES = [SpeedChange(1, "standard", 400.0), SpeedChange(4, "fast", 0.0)]


def test_fast_mode_is_suspended_and_continues(tmp_path: Path) -> None:
    """After a 429 with a long wait, the request is sent at once at standard speed; later turns stay at this speed
    until the time has passed. A replay continues at the recorded turn, at any time.
    """
    waits: list[int | None] = []

    async def ask(client: AsyncAnthropic) -> list[Any]:
        asked = agent(client, parts=TOOLS, speed="fast")
        events = [event async for event in asked.stream("One")]
        events += [event async for event in asked.stream("Two")]
        waits.append(asked.conversation.fast_resumes_ns)
        if len(waits) == 1:
            asked.conversation.fast_resumes_ns = 1  # In the recording, the time has passed.
        return [*events, *[event async for event in asked.stream("Three")]]

    provider = Provider(SUSPENDED)
    events = recorded_and_replayed(tmp_path, provider, ask)
    assert speeds(provider) == ["fast", None, None, None, "fast"]
    assert of_kind(events, Retry) == [Retry(1, 1, 0.0, "rate_limit_error", 429)]
    assert of_kind(events, SpeedChange) == CHANGES
    assert result_of(events[-1:]).text == "Done."
    assert len(waits) == 2
    assert None not in waits


def test_the_clock_of_the_world_ends_a_suspension() -> None:
    """Fast mode continues before the first turn after the requested time, by the clock of the world."""
    ahead_ns = [0]

    async def ask(client: AsyncAnthropic) -> list[Any]:
        asked = agent(client, parts=TOOLS, speed="fast")
        events = [event async for event in asked.stream("One")]
        for seconds in (300, 101):
            ahead_ns[0] += seconds * 10**9
            events += [event async for event in asked.stream("Next")]
        return events

    def ahead(live: World) -> World:
        return dataclasses.replace(live, now=lambda: live.now() + ahead_ns[0])

    with Provider(SUSPENDED) as provider, runtime.replaced(transform=ahead):
        events = play(provider, ask)
    assert speeds(provider) == ["fast", None, None, None, "fast"]
    assert of_kind(events, SpeedChange) == CHANGES


@pytest.mark.parametrize(
    ("reply", "changes"),
    [(OVERLOADED, {}), (LIMITED, {"unattended": True}), (LIMITED, {"extra": {"speed": "fast"}})],
)
def test_each_way_to_fast_mode(reply: Reply, changes: dict[str, Any]) -> None:
    """An overload also suspends fast mode, as does an unattended run, and fast mode in `extra`."""
    changes = {"speed": "fast", **changes} if "extra" not in changes else changes
    with Provider([reply, DONE]) as provider, recorded() as records:
        events = play(provider, asking(**changes))
    assert speeds(provider) == ["fast", None]
    [change] = of_kind(events, SpeedChange)
    kinds = [r for r in records if isinstance(r, Fact) and r.kind in ("speed", "retry")]
    assert [(str(r.kind), r.label, dict(r.numbers)) for r in kinds] == [
        ("speed", "standard", {"wait_ns": int(change.wait_s * 1e9)}),
        ("retry", of_kind(events, Retry)[0].error, {"attempt": 1, "wait_ns": 0}),
    ]


def test_a_short_wait_keeps_fast_mode() -> None:
    """After a short wait, the request is sent in fast mode, because its prompt cache is still valid."""
    with Provider([error(429, "rate_limit_error", retry_after_ms="5"), DONE]) as provider:
        events = play(provider, asking(speed="fast"))
    assert speeds(provider) == ["fast", "fast"]
    assert of_kind(events, SpeedChange) == []


def test_a_long_wait_at_standard_speed_ends_the_run() -> None:
    """At standard speed, the same failure is handled as before."""
    with Provider([LIMITED, LIMITED]) as provider:
        events = play(provider, asking(speed="fast"))
    assert speeds(provider) == ["fast", None]
    assert result_of(events).error == "rate_limit_error"


def test_the_fallback_model_during_a_suspension() -> None:
    """The request of the fallback model is also sent at standard speed during a suspension."""
    other = "claude-other-1"
    quick = error(529, "overloaded_error", retry_after_ms="1")
    with Provider([OVERLOADED, quick, quick, quick, DONE]) as provider:
        events = play(provider, asking(speed="fast", fallback_model=other))
    assert speeds(provider) == ["fast", None, None, None, None]
    assert [each.to_model for each in of_kind(events, Fallback)] == [other]


def test_the_fallback_model_has_no_speed() -> None:
    """Requests to the fallback model have no speed, including those of its sub-agents; fast mode does not continue."""
    other, quick = "claude-other-1", error(529, "overloaded_error", retry_after_ms="1")
    helper = AgentDefinition("helper", "Helps.", system="Help.")
    starts = streamed(
        message(call("s1", "agent", agent="helper", prompt="Help"), stop_reason="tool_use")
    )
    with Provider([quick, quick, quick, starts, DONE, DONE]) as provider:
        events = play(
            provider, asking(parts={"sub_agents": [helper]}, speed="fast", fallback_model=other)
        )
    assert [(request["model"], request.get("speed")) for request in provider.requests] == [
        *[(MODEL, "fast")] * 3,
        *[(other, None)] * 3,
    ]
    assert of_kind(events, SpeedChange) == of_kind(events, SettingHeld) == []


def test_a_sub_agent_with_another_model() -> None:
    """A sub-agent with another model has no speed, and this model is not its own fallback."""
    other = "claude-other-1"
    helper = AgentDefinition("helper", "Helps.", system="Help.", model=other)
    starts = streamed(
        message(call("s1", "agent", agent="helper", prompt="Help"), stop_reason="tool_use")
    )
    quick = error(529, "overloaded_error", retry_after_ms="1")
    with Provider([starts, quick, quick, quick, DONE, DONE]) as provider:
        events = play(
            provider, asking(parts={"sub_agents": [helper]}, speed="fast", fallback_model=other)
        )
    assert speeds(provider) == ["fast", None, None, None, None, "fast"]
    assert [e for e in of_kind(events, SubAgent) if isinstance(e.event, Fallback)] == []


def test_a_sub_agent_starts_with_the_suspension() -> None:
    """A sub-agent of a suspended agent does not send a request in fast mode, and its usage of `extra` is unchanged."""
    starts = call("s1", "agent", agent="helper", prompt="Help")
    helper = AgentDefinition("helper", "Helps.", system="Help.")
    replies = [LIMITED, streamed(message(starts, stop_reason="tool_use")), DONE, DONE]
    with Provider(replies) as provider:
        play(provider, asking(parts={"sub_agents": [helper]}, speed="fast"))
    assert speeds(provider) == ["fast", None, None, None]


def test_a_summary_during_a_suspension() -> None:
    """The request for a summary is sent in fast mode, except during a suspension."""
    messages = (
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": [text("z" * 9000)]},
        {"role": "user", "content": "Two"},
        {"role": "assistant", "content": [text("z" * 9000)]},
    )

    async def summarize(provider: Provider, resumes_ns: int | None) -> None:
        conversation = Conversation(messages, turns=2)
        conversation.fast_resumes_ns = resumes_ns
        async with provider.client() as client:
            await compact(conversation, world=live_world(client), options=options(speed="fast"))

    with Provider([DONE, DONE]) as provider:
        in_loop(summarize(provider, None))
        in_loop(summarize(provider, 2**62))
    assert speeds(provider) == ["fast", None]


def test_a_changed_speed_is_held() -> None:
    """A changed speed would invalidate the prompt cache, so it is held like the one in `extra`."""
    with Provider([DONE, DONE]) as provider:
        conversation = Conversation()

        async def ask(client: AsyncAnthropic) -> list[Any]:
            world, events = live_world(client), list[Any]()
            for speed in (None, "fast"):
                going = run(
                    "Go", world=world, options=options(speed=speed), conversation=conversation
                )
                events += [event async for event in going]
            return events

        events = play(provider, ask)
    assert speeds(provider) == [None, None]
    assert of_kind(events, SettingHeld) == [SettingHeld(2, "extra.speed")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"speed": "slow"}, "'slow' is not a speed"),
        (
            {"speed": "fast", "extra": {"speed": "standard"}},
            "AgentOptions.extra sets another speed",
        ),
    ],
)
def test_invalid_speeds(changes: dict[str, Any], expected: str) -> None:
    """An unknown speed, and two different speeds, are refused."""
    with pytest.raises(UsageError, match=expected):
        check_options(AgentOptions(MODEL, **changes))


def test_which_failures_suspend_fast_mode() -> None:
    """Only rate limits and overloads with a long wait suspend fast mode, whatever else the policy allows."""
    for kind in REACTIONS:
        for wait_s in (None, FAST_WAIT_S, FAST_WAIT_S + 1):
            failure = Failure(kind, provider_may_retry=False, requested_wait_s=wait_s)
            for policy in (
                RetryPolicy(is_fast=True),
                RetryPolicy(is_fast=True, is_background=True),
            ):
                found = next_attempt(failure, RetryHistory(), policy, 0.5)
                suspends = kind in ("rate_limit", "overloaded") and wait_s == FAST_WAIT_S + 1
                assert (found is not None and found.step == "slow_down") is suspends
