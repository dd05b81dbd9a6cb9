"""Token budgets: a model that stops too early is nudged to continue until nudges have little effect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.agent.context import token_budget
from agentobs.agent.events import Nudge, RequestStart
from agentobs.errors import UsageError
from tests.agent.agent_runs import events_of, of_kind, result_of
from tests.agent.provider import Provider, Reply, message, streamed, text


@pytest.mark.parametrize(
    ("spent_tokens", "nudged_at", "ending"),
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
def test_end_of_nudging(spent_tokens: int, nudged_at: list[int], ending: str | None) -> None:
    """Nudging ends at nine tenths of the budget, or after three consecutive nudges that each led to fewer than 500
    tokens.
    """
    assert token_budget.ending_reason(10_000, spent_tokens, nudged_at) == ending


@pytest.mark.slow
@given(st.integers(1, 20_000), st.lists(st.integers(0, 3000), min_size=60, max_size=60))
def test_nudges_are_limited(budget: int, gains: list[int]) -> None:
    """The number of nudges is limited, even if the model writes very little after each nudge."""
    spent_tokens, nudged_at = 0, list[int]()
    for gain in gains:
        spent_tokens += gain
        if token_budget.ending_reason(budget, spent_tokens, nudged_at):
            break
        nudged_at.append(spent_tokens)
    assert len(nudged_at) <= 3 * (budget // 500 + 1) + 3


def response_of(tokens: int) -> Reply:
    usage = {"input_tokens": 10, "output_tokens": tokens}
    return streamed(message(text(f"I said {tokens}."), usage=usage))


def run_agent(replies: list[Reply], **changes: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    with Provider(replies) as provider:
        events = events_of(provider, **changes)
    return events, provider.requests


def test_a_model_that_stops_early_is_nudged() -> None:
    """A model that stops early gets a nudge with the remaining budget, until nine tenths of the budget are spent."""
    events, requests = run_agent(
        [response_of(400), response_of(300), response_of(250)], token_budget=1000
    )
    assert of_kind(events, Nudge) == [Nudge(1, 1, 400), Nudge(2, 2, 700)]
    transitions = [event.transition for event in of_kind(events, RequestStart)]
    assert transitions == ["start", "token_budget", "token_budget"]
    assert "400 of the 1,000" in requests[1]["messages"][-1]["content"][0]["text"]
    result = result_of(events)
    assert (result.subtype, result.text) == ("success", "I said 250.")


def test_nudging_ends_when_it_has_little_effect() -> None:
    """After three nudges with little effect, the run ends."""
    events, requests = run_agent([response_of(400), *[response_of(10)] * 5], token_budget=100_000)
    assert len(requests) == 4
    assert result_of(events).subtype == "success"


def test_no_nudges_without_a_token_budget() -> None:
    """Without a token budget, which is the default, the model may stop at any time."""
    events, requests = run_agent([response_of(1)])
    assert len(requests) == 1
    assert not of_kind(events, Nudge)


def test_an_invalid_token_budget() -> None:
    """A budget below one token raises one clear error before any request is sent."""
    with pytest.raises(UsageError, match="0 is not a valid token budget"):
        run_agent([], token_budget=0)
