"""At 80% and 95% of a budget in money, the run reports it once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from agentobs.agent import (
    AgentDefinition,
    Budget,
    BudgetLevel,
    BudgetReached,
    Conversation,
    Event,
    Hook,
    SubAgent,
    live_world,
    run,
    tool,
)
from agentobs.agent.budget import Spent, reached_levels
from agentobs.records.facts import Event as Fact

from .agent_objects import agent, asking, play, recorded_and_replayed
from .agent_runs import of_kind, options, recorded, result_of
from .provider import Provider, Reply, call, message, streamed, text

SONNET = "claude-sonnet-4-6"
"""A model with a known price: 3 USD per million input tokens, 15 for output."""
COST = Decimal("0.3000159")
"""The cost of one response."""


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


def priced(*content: dict[str, Any]) -> Reply:
    usage = {"input_tokens": 100_000, "output_tokens": 1}
    return streamed(message(*content, model=SONNET, usage=usage))


def looks(count: int) -> list[Reply]:
    return [priced(call(f"t{n}", "look")) for n in range(count)]


DONE = priced(text("Done."))


@pytest.mark.slow
def test_a_share_of_a_budget_is_reported_once(tmp_path: Path) -> None:
    """80% and 95% are events and facts, hooks for notifications run, and a replay reports the same."""
    seen: list[dict[str, Any]] = []
    hook = Hook("notification", lambda payload: seen.append(payload), name="notice")
    limit = Decimal("3.1")
    provider = Provider([*looks(10), DONE])
    ask = asking(
        parts={"tools": [look], "hooks": [hook]},
        model=SONNET,
        budget=Budget(interaction_usd=limit, repeated_turns=None),
    )
    events = recorded_and_replayed(tmp_path, provider, ask)
    assert of_kind(events, BudgetLevel) == [
        BudgetLevel("interaction_usd", 80, 9 * COST, limit),
        BudgetLevel("interaction_usd", 95, 10 * COST, limit),
    ]
    assert [(each["kind"], each["reason"]) for each in seen] == [
        ("budget", "80% of the budget interaction_usd is spent."),
        ("budget", "95% of the budget interaction_usd is spent."),
    ]
    assert result_of(events).text == "Done."


def test_levels_are_facts_without_amounts() -> None:
    """The fact contains the limit and the share."""
    budget = Budget(interaction_usd=Decimal("0.31"))
    with Provider([*looks(1), DONE]) as provider, recorded() as records:
        play(provider, asking(parts={"tools": [look]}, model=SONNET, budget=budget))
    found = [r for r in records if isinstance(r, Fact) and r.kind == "budget_level"]
    assert [(r.label, dict(r.numbers)) for r in found] == [("interaction_usd", {"percent": 95})]


def test_a_budget_that_is_used_up_is_not_reported_twice() -> None:
    """If one response uses up the budget, only that is reported."""
    budget = Budget(interaction_usd=Decimal("0.3"), at_limit="warn")
    with Provider([*looks(1), DONE]) as provider:
        events = play(provider, asking(parts={"tools": [look]}, model=SONNET, budget=budget))
    assert of_kind(events, BudgetLevel) == []
    assert of_kind(events, BudgetReached) == [BudgetReached("interaction_usd", continues=True)]


def test_the_share_of_a_session_is_reported_once_per_conversation() -> None:
    """A later run of the conversation does not report the same share again; a run of its own interaction does."""
    budget = Budget(session_usd=Decimal("0.75"), interaction_usd=Decimal("0.31"))
    with Provider([*looks(1), DONE, *looks(1), DONE]) as provider:
        ask = asking("One", "Two", parts={"tools": [look]}, model=SONNET, budget=budget)
        events = play(provider, ask)
    assert [(e.limit, e.percent) for e in of_kind(events, BudgetLevel)] == [
        ("interaction_usd", 95),
        ("session_usd", 80),
    ]


def test_the_share_of_a_day_is_reported_again_on_the_next_day() -> None:
    """If less is spent than before, because a new day has begun, the share counts as not reported."""
    spent = iter(map(Decimal, ["8.5", "9", "1", "8"]))

    async def ask(client: AsyncAnthropic) -> list[Event]:
        world, conversation = (
            live_world(client, [look], spent_today=lambda: next(spent)),
            Conversation(),
        )
        events: list[Event] = []
        for _ in range(2):
            going = run(
                "Go",
                world=world,
                options=options(budget=Budget(day_usd=Decimal(10))),
                tools=[look],
                conversation=conversation,
            )
            events += [event async for event in going]
        return events

    with Provider([*looks(1), DONE, *looks(1), DONE]) as provider:
        events = play(provider, ask)
    assert of_kind(events, BudgetLevel) == [
        BudgetLevel("day_usd", 80, Decimal("8.5"), Decimal(10)),
        BudgetLevel("day_usd", 80, Decimal(8), Decimal(10)),
    ]


def test_agents_that_share_a_budget_report_a_share_once(tmp_path: Path) -> None:
    """The agent whose request has reached the share reports it, and the others do not; a replay does the same."""
    helper = AgentDefinition("helper", "Helps.", system="Help.", tools=("look",))
    starts = call("s1", "agent", agent="helper", prompt="Help")
    provider = Provider([priced(starts), *looks(1), DONE, DONE])
    ask = asking(
        parts={"tools": [look], "sub_agents": [helper]},
        model=SONNET,
        budget=Budget(interaction_usd=Decimal("0.75")),
    )
    events = recorded_and_replayed(tmp_path, provider, ask)
    inner = [e.event for e in of_kind(events, SubAgent)]
    assert [e.percent for e in inner if isinstance(e, BudgetLevel)] == [80]
    assert of_kind(events, BudgetLevel) == []


def test_a_budget_without_an_amount_costs_no_question() -> None:
    """Without a limit in money, nothing is reported, and the prices are not read."""

    async def ask(client: AsyncAnthropic) -> list[Event]:
        asked = agent(client, parts={"tools": [look]}, model=SONNET)
        return [event async for event in asked.stream("Go")]

    with Provider([*looks(1), DONE]) as provider:
        assert of_kind(play(provider, ask), BudgetLevel) == []


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        ("0", 0),
        ("0.7999", 0),
        ("0.80", 80),
        ("0.9499", 80),
        ("0.95", 95),
        ("0.999", 95),
        ("1", None),
        ("2", None),
    ],
)
def test_the_level_of_an_amount(spent: str, expected: int | None) -> None:
    """A share is reached at exactly its percentage; a budget that is used up has no level."""
    found = reached_levels(Budget(session_usd=Decimal(1)), Spent(session_usd=Decimal(spent)))
    assert found == ({} if expected is None else {"session_usd": expected})
    assert reached_levels(Budget(), Spent(session_usd=Decimal(spent))) == {}
