"""Token budgets: a model that stops too early is nudged until that has no more effect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.context import token_budget
from agentobs.agent.events import Nudge, RequestStart
from agentobs.errors import UsageError
from tests.agent.provider import Provider, Reply, message, streamed, text
from tests.agent.scene import events_of, of_kind, result_of


@pytest.mark.parametrize(
    ("said", "nudged_at", "ending"),
    [
        (0, [], None),
        (8_999, [], None),
        (9_000, [], "spent"),
        (20_000, [], "spent"),
        (1_499, [0, 500, 1000], None),
        (1_497, [0, 499, 998], "diminishing"),
        (1_400, [0, 400, 901], None),
        (300, [100, 200], None),
        (300, [0, 100, 200], "diminishing"),
    ],
)
def test_when_it_ends(said: int, nudged_at: list[int], ending: str | None) -> None:
    """At nine tenths of the budget, or when three consecutive nudges each produced fewer than 500 tokens."""
    assert token_budget.ending(10_000, said, nudged_at) == ending


@given(st.integers(1, 20_000), st.lists(st.integers(0, 3000), min_size=60, max_size=60))
def test_nudges_are_bounded(budget: int, gains: list[int]) -> None:
    """However little the model writes, the nudges end."""
    said, nudged_at = 0, list[int]()
    for gain in gains:
        said += gain
        if token_budget.ending(budget, said, nudged_at):
            break
        nudged_at.append(said)
    assert len(nudged_at) <= 3 * (budget // 500 + 1) + 3


def said(tokens: int) -> Reply:
    usage = {"input_tokens": 10, "output_tokens": tokens}
    return streamed(message(text(f"I said {tokens}."), usage=usage))


def played(replies: list[Reply], **changes: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    with Provider(replies) as provider:
        events = events_of(provider, **changes)
    return events, provider.requests


def test_a_model_that_stops_early_goes_on() -> None:
    """The nudge says how much is left, and the run ends when nine tenths are spent."""
    events, requests = played([said(400), said(300), said(250)], token_budget=1000)
    assert of_kind(events, Nudge) == [Nudge(1, 1, 400), Nudge(2, 2, 700)]
    transitions = [event.transition for event in of_kind(events, RequestStart)]
    assert transitions == ["start", "token_budget", "token_budget"]
    assert "400 of the 1,000" in requests[1]["messages"][-1]["content"][0]["text"]
    result = result_of(events)
    assert (result.subtype, result.text) == ("success", "I said 250.")


def test_diminishing_returns_end_it() -> None:
    """Three nudges with little effect are the last ones."""
    events, requests = played([said(400), *[said(10)] * 5], token_budget=100_000)
    assert len(requests) == 4
    assert result_of(events).subtype == "success"


def test_without_a_budget_nobody_nudges() -> None:
    """By default the model may stop at any time."""
    events, requests = played([said(1)])
    assert len(requests) == 1
    assert not of_kind(events, Nudge)


def test_a_budget_that_cannot_be_spent() -> None:
    """A budget below one token is one clear error, before any request is sent."""
    with pytest.raises(UsageError, match="a budget of 0 tokens"):
        played([], token_budget=0)
