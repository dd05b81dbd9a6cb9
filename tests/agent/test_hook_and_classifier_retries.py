"""Requests of hooks and the classifier outside a run: how often they are retried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentobs.agent.events import HookRan, Result
from agentobs.agent.hooks import Hook, PromptHook, table
from agentobs.agent.tools.tool import tool
from tests.agent.hooks.playing import SMALL, played
from tests.agent.provider import Provider, Reply, call, error, message, streamed, text, whole
from tests.agent.scene import of_kind

DONE = streamed(message(text("Done.")))
WRITES = streamed(message(call("a", "write", what="x"), stop_reason="tool_use"))
FINE = whole(
    message(
        call("j", "answer", outcome="success", reason="Fine."), model=SMALL, stop_reason="tool_use"
    )
)
SOON = error(500, "api_error", retry_after_ms="1")
HOOKS = table([Hook("pre_tool_use", PromptHook("Is it safe?"), name="judge")])


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def asked(replies: Sequence[Reply]) -> tuple[str, int, list[Any]]:
    """The outcome of the hook, and the number of its requests."""
    with Provider([WRITES, *replies, DONE]) as provider:
        events = played(provider, tools=[write], hooks=HOOKS)
    (ran,) = of_kind(events, HookRan)
    return ran.outcome, len(provider.requests) - 2, events


def test_a_judge_is_asked_again() -> None:
    """A transient failure is retried twice, after the wait that the provider asks for."""
    outcome, requests, events = asked([SOON, SOON, FINE])
    assert (outcome, requests) == ("success", 3)
    (result,) = of_kind(events, Result)
    assert result.meter.by_model()["claude-1-small"].calls == 1


@pytest.mark.parametrize(
    ("replies", "requests"),
    [
        ([SOON] * 3, 3),
        ([error(529, "overloaded_error", retry_after_ms="1")], 1),
        ([error(500, "api_error", retry_after="299")], 1),
        ([error(401, "authentication_error")], 1),
    ],
)
def test_a_judge_is_given_up(replies: list[Reply], requests: int) -> None:
    """After two retries; immediately if the provider is overloaded, the wait is too long or the key is wrong."""
    outcome, made, _ = asked(replies)
    assert (outcome, made) == ("non_blocking_error", requests)
