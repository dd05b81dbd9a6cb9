"""Budgets, in money and in turns."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from agentobs.agent.budget import Budget, Spent, reached
from agentobs.agent.events import BudgetReached, Limit, ToolDone
from agentobs.agent.execution.live_answers import Consent
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import tool
from agentobs.errors import UsageError
from agentobs.records.exchanges import WorldExchange
from agentobs.records.facts import Event as EventFact

from .agent_runs import events_of, of_kind, recorded, result_of
from .provider import Provider, call, cut_after, error, event_bytes, message, streamed, text
from .provider import Reply as ProviderReply

SONNET = "claude-sonnet-4-6"
"""A model with a known price: 3 USD per million input tokens, 15 for output."""
COUNTS = {"input_tokens": 100_000, "output_tokens": 1}


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


def priced(*content: dict[str, Any]) -> dict[str, Any]:
    """Return a response that costs 0.3000159 dollars."""
    return message(*content, model=SONNET, usage=dict(COUNTS))


FIRST_CALL = priced(call("a", "look"))
SECOND_CALL = priced(call("b", "look"))
DONE = priced(text("Done."))


@pytest.mark.parametrize(
    ("budget", "spent", "limit"),
    [
        (Budget(), Spent(Decimal(9), Decimal(9), Decimal(9), 9), None),
        (Budget(interaction_usd=Decimal(1)), Spent(interaction_usd=Decimal("0.99")), None),
        (Budget(interaction_usd=Decimal(1)), Spent(interaction_usd=Decimal(1)), "interaction_usd"),
        (Budget(session_usd=Decimal(1)), Spent(session_usd=Decimal(1)), "session_usd"),
        (Budget(day_usd=Decimal(1)), Spent(day_usd=Decimal(2)), "day_usd"),
        (Budget(session_turns=2), Spent(session_turns=1), None),
        (Budget(session_turns=2), Spent(session_turns=2), "session_turns"),
        (
            Budget(interaction_usd=Decimal(1), session_turns=1),
            Spent(Decimal(1), Decimal(1), Decimal(1), 1),
            "interaction_usd",
        ),
    ],
)
def test_budget_limits(budget: Budget, spent: Spent, limit: Limit | None) -> None:
    """A limit is reached when the spending equals it; if several limits are reached, the narrowest is reported."""
    assert reached(budget, spent) == limit


def test_the_budget_of_an_interaction() -> None:
    """After the budget of an interaction is spent, no request is sent and no tool runs; the result contains the
    cost.
    """
    with Provider([streamed(FIRST_CALL), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider, tools=[look], model=SONNET, budget=Budget(interaction_usd=Decimal("0.3"))
        )
    result = result_of(events)
    assert (result.subtype, result.terminal_reason) == ("error_max_budget_usd", "max_budget")
    assert (result.total_cost_usd, result.cost_status) == (Decimal("0.3000159"), "exact")
    assert of_kind(events, BudgetReached) == [BudgetReached("interaction_usd", continues=False)]
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["executed"]
    assert len(provider.requests) == 1
    budgets = [e for e in of_kind(records, EventFact) if e.kind == "budget"]
    assert [(e.label, dict(e.numbers)) for e in budgets] == [
        ("interaction_usd", {"continues": False})
    ]


def test_tools_do_not_run_beyond_the_budget() -> None:
    """After the budget is spent, a call that needs a decision is denied in any mode."""

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("the tool ran")

    with Provider([streamed(priced(call("a", "write")))]) as provider:
        events = events_of(
            provider, tools=[write], model=SONNET, budget=Budget(interaction_usd=Decimal("0.3"))
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["denied"]
    assert result_of(events).terminal_reason == "max_budget"


def test_the_budget_of_a_conversation() -> None:
    """A session budget applies to all runs of one conversation together, and to each conversation separately."""
    conversation, budget = Conversation(), Budget(session_usd=Decimal("0.4"))
    with Provider([streamed(DONE), streamed(DONE), streamed(DONE)]) as provider:

        def outcome(conversation: Conversation) -> str:
            events = events_of(provider, conversation=conversation, model=SONNET, budget=budget)
            return result_of(events).terminal_reason

        assert [outcome(conversation), outcome(conversation), outcome(conversation)] == [
            "completed",
            "completed",
            "max_budget",
        ]
        assert outcome(Conversation()) == "completed"


def test_the_budget_of_a_day() -> None:
    """For a daily budget, the spending of the day is requested from the world before each LLM request, and is
    recorded.
    """
    spent = iter([Decimal("0.5"), Decimal("4")])
    with Provider([streamed(FIRST_CALL), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[look],
            model=SONNET,
            budget=Budget(day_usd=Decimal(4)),
            world={"spent_today": lambda: next(spent)},
        )
    assert result_of(events).terminal_reason == "max_budget"
    exchanges = of_kind(records, WorldExchange)
    assert [(e.question.kind, e.answer) for e in exchanges] == [
        ("spent_today", "0.5"),
        ("spent_today", "4"),
    ]


def test_the_turn_limit_of_a_conversation() -> None:
    """The turn limit of a conversation counts the turns with tool calls of all its runs."""
    conversation, budget = Conversation(), Budget(session_turns=1)
    with Provider([streamed(FIRST_CALL), streamed(DONE)]) as provider:
        result = result_of(
            events_of(
                provider, tools=[look], conversation=conversation, budget=budget, model=SONNET
            )
        )
    assert (result.subtype, result.terminal_reason) == ("error_max_turns", "max_turns")
    assert (conversation.tool_turns, len(provider.requests)) == (1, 1)


def test_a_budget_that_only_warns() -> None:
    """If a budget only warns, reaching it is reported once, and the run continues."""
    budget = Budget(interaction_usd=Decimal("0.3"), at_limit="warn")
    replies = [streamed(FIRST_CALL), streamed(SECOND_CALL), streamed(DONE)]
    with Provider(replies) as provider:
        events = events_of(provider, tools=[look], model=SONNET, budget=budget)
    assert of_kind(events, BudgetReached) == [BudgetReached("interaction_usd", continues=True)]
    assert result_of(events).subtype == "success"


@pytest.mark.parametrize("allowed", [True, False])
def test_a_person_can_exceed_a_budget(allowed: bool) -> None:
    """If a person approves, the run continues beyond its budget; otherwise it ends."""
    seen: list[Consent] = []

    def person(consent: Consent) -> bool:
        seen.append(consent)
        return allowed

    budget = Budget(interaction_usd=Decimal("0.3"), at_limit="ask")
    with Provider([streamed(FIRST_CALL), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[look], model=SONNET, budget=budget, world={"person": person}
        )
    assert [consent.about for consent in seen] == [{"limit": "interaction_usd"}]
    assert of_kind(events, BudgetReached) == [BudgetReached("interaction_usd", continues=allowed)]
    assert result_of(events).subtype == ("success" if allowed else "error_max_budget_usd")


def test_a_model_without_a_price() -> None:
    """If a model has no known price, a limit in money cannot be enforced, so the run ends before its next request."""
    budget = Budget(interaction_usd=Decimal("0.01"))
    with Provider(
        [streamed(message(call("a", "look"))), streamed(message(text("Done.")))]
    ) as provider:
        events = events_of(provider, tools=[look], budget=budget)
    result = result_of(events)
    assert of_kind(events, BudgetReached) == [BudgetReached("unpriced", continues=False)]
    assert (result.terminal_reason, len(provider.requests)) == ("max_budget", 1)
    assert (result.total_cost_usd, result.cost_status) == (None, "unknown_model")


@pytest.mark.parametrize("amount", [0.5, Decimal(-1), "1", Decimal("NaN")])
def test_an_inexact_budget_is_rejected(amount: Any) -> None:
    """A limit that is not an exact amount of at least zero is rejected with a suggested fix."""
    with pytest.raises(
        UsageError, match=r"Budget\.interaction_usd: .* is not a valid amount.*Decimal"
    ):
        Budget(interaction_usd=amount)


def test_runaway_detection() -> None:
    """With runaway detection, a run ends after six turns that each cost more than the previous turn."""

    def turns() -> list[Any]:
        answers = [
            message(call(f"c{n}", "look"), model=SONNET, usage={**COUNTS, "input_tokens": 1000 * n})
            for n in range(1, 7)
        ]
        return [streamed(answer) for answer in (*answers, DONE)]

    with Provider(turns()) as provider:
        events = events_of(provider, tools=[look], model=SONNET, budget=Budget(runaway=True))
    assert of_kind(events, BudgetReached) == [BudgetReached("rising_cost", continues=False)]
    assert (result_of(events).terminal_reason, len(provider.requests)) == ("max_budget", 6)
    with Provider(turns()) as provider:
        events = events_of(provider, tools=[look], model=SONNET)
    assert result_of(events).subtype == "success"


def test_failed_attempts_cost_money() -> None:
    """The budget is checked before each attempt, because failed attempts may have been billed."""
    broken = cut_after(message(text("Hello"), model=SONNET, usage=dict(COUNTS)), 3)
    started = {**COUNTS, "output_tokens": 1}
    chunks = list(broken.chunks)
    first = json.loads(chunks[0].split(b"data: ")[1])
    first["message"]["usage"] = started
    expensive = ProviderReply((event_bytes(first), *chunks[1:]), headers=broken.headers, cut=True)
    with Provider([expensive, expensive, expensive]) as provider:
        events = events_of(provider, model=SONNET, budget=Budget(interaction_usd=Decimal("0.5")))
    assert result_of(events).terminal_reason == "max_budget"
    assert len(provider.requests) == 2


def test_an_attempt_without_usage_is_a_lower_bound() -> None:
    """After a response that broke before it reported usage, the cost is a lower bound; a rejected request costs
    nothing.
    """
    cut = ProviderReply((b": nothing yet\n\n", b""), headers=streamed(DONE).headers, cut=True)
    for first, status in ((cut, "lower_bound"), (error(529, "overloaded_error"), "exact")):
        with Provider([first, streamed(DONE)]) as provider:
            result = result_of(events_of(provider, model=SONNET))
        assert (result.subtype, result.cost_status) == ("success", status)
        assert result.total_cost_usd == Decimal("0.3000159")
