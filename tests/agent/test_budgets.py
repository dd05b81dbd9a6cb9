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

from .provider import Provider, call, cut_after, error, event_bytes, message, streamed, text
from .provider import Reply as Sent
from .scene import events_of, of_kind, recorded, result_of

SONNET = "claude-sonnet-4-6"
"""A model with a known price: 3 USD per million input tokens, 15 for output."""
COUNTS = {"input_tokens": 100_000, "output_tokens": 1}


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


def priced(*content: dict[str, Any]) -> dict[str, Any]:
    """A response that costs 0.3000159 dollars."""
    return message(*content, model=SONNET, usage=dict(COUNTS))


ASKING = priced(call("a", "look"))
AGAIN = priced(call("b", "look"))
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
def test_limits(budget: Budget, spent: Spent, limit: Limit | None) -> None:
    """A limit is reached when the spending equals it; the narrowest one is reported."""
    assert reached(budget, spent) == limit


def test_the_money_of_an_interaction() -> None:
    """No request is sent, and no tool runs, once the budget is spent; the result has the cost."""
    with Provider([streamed(ASKING), streamed(DONE)]) as provider, recorded() as records:
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


def test_tools_do_not_run_beyond_the_money() -> None:
    """A call that needs a decision after the budget is spent is denied, whatever the mode allows."""

    @tool
    def write() -> str:
        """Write."""
        raise AssertionError("it ran")

    with Provider([streamed(priced(call("a", "write")))]) as provider:
        events = events_of(
            provider, tools=[write], model=SONNET, budget=Budget(interaction_usd=Decimal("0.3"))
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["denied"]
    assert result_of(events).terminal_reason == "max_budget"


def test_the_money_of_a_conversation() -> None:
    """A session's budget applies across runs of one conversation; another conversation has its own."""
    talk, budget = Conversation(), Budget(session_usd=Decimal("0.4"))
    with Provider([streamed(DONE), streamed(DONE), streamed(DONE)]) as provider:

        def outcome(conversation: Conversation) -> str:
            events = events_of(provider, conversation=conversation, model=SONNET, budget=budget)
            return result_of(events).terminal_reason

        assert [outcome(talk), outcome(talk), outcome(talk)] == [
            "completed",
            "completed",
            "max_budget",
        ]
        assert outcome(Conversation()) == "completed"


def test_the_money_of_a_day() -> None:
    """Today's spending is requested from the world before each LLM request, and recorded."""
    spent = iter([Decimal("0.5"), Decimal("4")])
    with Provider([streamed(ASKING), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider,
            tools=[look],
            model=SONNET,
            budget=Budget(day_usd=Decimal(4)),
            world={"spent_today": lambda: next(spent)},
        )
    assert result_of(events).terminal_reason == "max_budget"
    asked = of_kind(records, WorldExchange)
    assert [(e.question.kind, e.answer) for e in asked] == [
        ("spent_today", "0.5"),
        ("spent_today", "4"),
    ]


def test_turns_of_a_conversation() -> None:
    """Turns that used tools are counted over the whole conversation."""
    talk, budget = Conversation(), Budget(session_turns=1)
    with Provider([streamed(ASKING), streamed(DONE)]) as provider:
        result = result_of(
            events_of(provider, tools=[look], conversation=talk, budget=budget, model=SONNET)
        )
    assert (result.subtype, result.terminal_reason) == ("error_max_turns", "max_turns")
    assert (talk.tool_turns, len(provider.requests)) == (1, 1)


def test_only_a_warning() -> None:
    """A budget that only warns reports once and continues."""
    budget = Budget(interaction_usd=Decimal("0.3"), at_limit="warn")
    replies = [streamed(ASKING), streamed(AGAIN), streamed(DONE)]
    with Provider(replies) as provider:
        events = events_of(provider, tools=[look], model=SONNET, budget=budget)
    assert of_kind(events, BudgetReached) == [BudgetReached("interaction_usd", continues=True)]
    assert result_of(events).subtype == "success"


@pytest.mark.parametrize("allowed", [True, False])
def test_a_person_decides(allowed: bool) -> None:
    """A person may let the run continue beyond its budget; without a person the answer is no."""
    seen: list[Consent] = []

    def person(consent: Consent) -> bool:
        seen.append(consent)
        return allowed

    budget = Budget(interaction_usd=Decimal("0.3"), at_limit="ask")
    with Provider([streamed(ASKING), streamed(DONE)]) as provider:
        events = events_of(
            provider, tools=[look], model=SONNET, budget=budget, world={"person": person}
        )
    assert [consent.about for consent in seen] == [{"limit": "interaction_usd"}]
    assert of_kind(events, BudgetReached) == [BudgetReached("interaction_usd", continues=allowed)]
    assert result_of(events).subtype == ("success" if allowed else "error_max_budget_usd")


def test_a_model_without_a_price() -> None:
    """A limit in money cannot be enforced: the run ends before the next request, with an unknown cost."""
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
def test_a_budget_is_exact(amount: Any) -> None:
    """A limit that is not an exact amount of at least zero is refused, with a suggested fix."""
    with pytest.raises(UsageError, match=r"Budget\.interaction_usd: a budget of .*Decimal"):
        Budget(interaction_usd=amount)


def test_a_runaway_is_a_limit_where_it_is_asked_for() -> None:
    """Six turns, each more expensive than the previous one, end the run if runaway detection is enabled."""

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


def test_attempts_that_fail_cost_money_too() -> None:
    """The budget is checked before each attempt, because broken responses are billed."""
    broken = cut_after(message(text("Hello"), model=SONNET, usage=dict(COUNTS)), 3)
    started = {**COUNTS, "output_tokens": 1}
    pieces = list(broken.pieces)
    first = json.loads(pieces[0].split(b"data: ")[1])
    first["message"]["usage"] = started
    dear = Sent((event_bytes(first), *pieces[1:]), headers=broken.headers, cut=True)
    with Provider([dear, dear, dear]) as provider:
        events = events_of(provider, model=SONNET, budget=Budget(interaction_usd=Decimal("0.5")))
    assert result_of(events).terminal_reason == "max_budget"
    assert len(provider.requests) == 2


def test_an_attempt_that_told_nothing_is_a_lower_bound() -> None:
    """A response cut before it reported usage may have a cost; a refused request costs nothing."""
    cut = Sent((b": nothing yet\n\n", b""), headers=streamed(DONE).headers, cut=True)
    for first, status in ((cut, "lower_bound"), (error(529, "overloaded_error"), "exact")):
        with Provider([first, streamed(DONE)]) as provider:
            result = result_of(events_of(provider, model=SONNET))
        assert (result.subtype, result.cost_status) == ("success", status)
        assert result.total_cost_usd == Decimal("0.3000159")
