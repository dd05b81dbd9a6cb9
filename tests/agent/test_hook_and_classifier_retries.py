"""Retries of requests that hooks and the classifier send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentobs.agent.events import HookRan
from agentobs.agent.hooks import Hook, PromptHook, table
from agentobs.agent.run_result import Result
from agentobs.agent.tools.tool import tool
from tests.agent.agent_runs import of_kind
from tests.agent.hooks.live_runs import SMALL, run_agent
from tests.agent.provider import Provider, Reply, call, error, message, streamed, text, unstreamed

DONE = streamed(message(text("Done.")))
WRITES = streamed(message(call("a", "write", what="x"), stop_reason="tool_use"))
ALLOWED = unstreamed(
    message(
        call("j", "answer", outcome="success", reason="Fine."), model=SMALL, stop_reason="tool_use"
    )
)
RETRY_SOON = error(500, "api_error", retry_after_ms="1")
HOOKS = table([Hook("pre_tool_use", PromptHook("Is it safe?"), name="judge")])


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def outcome_of(replies: Sequence[Reply]) -> tuple[str, int, list[Any]]:
    """Return the outcome of the hook, the number of attempts of its request, and the events."""
    with Provider([WRITES, *replies, DONE]) as provider:
        events = run_agent(provider, tools=[write], hooks=HOOKS)
    (ran,) = of_kind(events, HookRan)
    return ran.outcome, len(provider.requests) - 2, events


def test_a_transient_failure_is_retried() -> None:
    """After a transient failure, the request is retried up to twice, after the wait that the provider requests."""
    outcome, requests, events = outcome_of([RETRY_SOON, RETRY_SOON, ALLOWED])
    assert (outcome, requests) == ("success", 3)
    (result,) = of_kind(events, Result)
    assert result.meter.by_model()["claude-1-small"].calls == 1


@pytest.mark.parametrize(
    ("replies", "requests"),
    [
        ([RETRY_SOON] * 3, 3),
        ([error(529, "overloaded_error", retry_after_ms="1")], 1),
        ([error(500, "api_error", retry_after="299")], 1),
        ([error(401, "authentication_error")], 1),
    ],
)
def test_a_request_that_keeps_failing_is_given_up(replies: list[Reply], requests: int) -> None:
    """A request is given up after two retries, or immediately if the provider is overloaded, the requested wait is too
    long, or the key is wrong.
    """
    outcome, sent_requests, _ = outcome_of(replies)
    assert (outcome, sent_requests) == ("blocking", requests)
