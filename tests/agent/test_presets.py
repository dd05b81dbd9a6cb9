"""Presets: parts of the options that are combined field by field."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent import AgentOptions, Budget, Hook, Permissions, Preset, Rule, preset
from agentobs.agent.events import BudgetReached
from agentobs.errors import UsageError

from .agent_objects import play, recorded_and_replayed
from .agent_runs import of_kind, result_of
from .provider import MODEL, Provider, error, message, streamed, text

DONE = streamed(message(text("Done.")))
DENY = Rule.parse("pay", "deny", "user")
TEAM = preset(
    "team",
    model=MODEL,
    max_retries=1,
    budget={"interaction_usd": Decimal(5), "at_limit": "warn"},
    permissions={"mode": "acceptEdits", "rules": (DENY,)},
    extra={"temperature": 0, "service_tier": "auto"},
)


def test_presets_are_combined_field_by_field() -> None:
    """The later value wins for each field, including the fields of groups and the keys of `extra`."""
    program = preset(
        "program",
        max_turns=7,
        budget={"session_turns": 9},
        permissions={"mode": "plan"},
        extra={"temperature": 1},
    )
    expected = AgentOptions(
        MODEL,
        max_retries=1,
        max_turns=7,
        budget=Budget(interaction_usd=Decimal(5), at_limit="warn", session_turns=9),
        permissions=Permissions(mode="plan", rules=(DENY,)),
        extra={"temperature": 1, "service_tier": "auto"},
    )
    assert (TEAM | program).options() == expected
    assert TEAM.options(**_fields(program)) == expected


def _fields(given: Preset) -> dict[str, Any]:
    """Return the arguments with which a preset was created."""
    fields: dict[str, Any] = {}
    for path, value in given.values.items():
        if len(path) == 1:
            fields[path[0]] = value
        else:
            fields.setdefault(path[0], {})[path[1]] = value
    return fields


def test_a_default_that_was_set_wins() -> None:
    """A field that a later preset sets to its default replaces the earlier value."""
    default = AgentOptions(MODEL)
    later = preset(
        max_retries=default.max_retries,
        budget={"interaction_usd": None, "at_limit": "stop"},
        permissions={"mode": "default"},
    )
    options = (TEAM | later).options()
    assert (options.max_retries, options.budget) == (default.max_retries, Budget())
    assert options.permissions == Permissions(rules=(DENY,))


def test_a_preset_is_applied_to_options() -> None:
    """Complete options keep the fields that the preset does not set."""
    before = AgentOptions("claude-other-1", max_turns=3, budget=Budget(session_usd=Decimal(2)))
    after = before | TEAM
    assert (after.model, after.max_turns, after.max_retries) == (MODEL, 3, 1)
    assert after.budget == Budget(
        session_usd=Decimal(2), interaction_usd=Decimal(5), at_limit="warn"
    )
    assert before == AgentOptions(
        "claude-other-1", max_turns=3, budget=Budget(session_usd=Decimal(2))
    )


def test_combining_is_associative() -> None:
    """The grouping of a combination has no effect, and no preset changes."""
    a, b, c = TEAM, preset("b", max_turns=1, budget={"runaway": True}), preset("c", max_turns=2)
    assert ((a | b) | c).options() == (a | (b | c)).options()
    assert TEAM.options().budget.runaway is False


@pytest.mark.parametrize(
    ("create", "expected"),
    [
        (
            lambda: preset("team", max_retrys=3),
            "preset team: AgentOptions has no field 'max_retrys'. Write max_retries.",
        ),
        (
            lambda: preset("team", budget={"interaction": 1}),
            "preset team: Budget has no field 'interaction'. Write interaction_usd.",
        ),
        (
            lambda: preset("team", budget=Budget()),
            "preset team: budget is a Budget, which sets all of its fields. "
            'Pass a dictionary with the fields to set, such as budget={"FIELD": VALUE}.',
        ),
        (
            lambda: preset("team", max_turns=3).options(),
            'preset team: no model is set. Set it in a preset, or with preset.options(model="MODEL").',
        ),
        (
            lambda: TEAM | AgentOptions(MODEL),  # type: ignore[operator]  # wrong on purpose
            "preset team: AgentOptions set every field, so that no field of the preset would remain. "
            "Write options | preset, or preset.options(model=...).",
        ),
        (
            lambda: (TEAM | preset("mine", fallback_model=MODEL)).options(),
            f"AgentOptions.fallback_model of the preset mine: {MODEL} is its own fallback. "
            "Name another model, or none.",
        ),
        (
            lambda: (preset("mine", budget={"day_usd": -1}) | TEAM).options(),
            "Budget.day_usd of the preset mine: -1 is not a valid amount. "
            'Set an exact amount in USD that is not negative, such as Decimal("0.50").',
        ),
        (
            lambda: AgentOptions(MODEL) | preset("mine", max_turns=0),
            "AgentOptions.max_turns of the preset mine: 0 is not a number of turns. "
            "Set 1 or more, or None for no limit.",
        ),
        (
            lambda: TEAM.options(permissions={"mode": "bypassPermissions"}),
            "Permissions of the preset program, team: "
            "the mode bypassPermissions runs all tools without approval, and must be confirmed. "
            "Pass bypass_confirmed=True only on a machine that you can afford to lose; "
            "otherwise use acceptEdits.",
        ),
    ],
)
def test_invalid_presets(create: Any, expected: str) -> None:
    """An unknown field is refused at once, and a contradiction when the options are complete.

    The error names the preset that set the value.
    """
    with pytest.raises(UsageError) as raised:
        create()
    assert str(raised.value) == expected


def test_contradictions_are_checked_on_the_combination() -> None:
    """Two presets that contradict each other only without a third one can be combined with it."""
    first = preset("first", context={"window_tokens": 30_000})
    with pytest.raises(UsageError, match="no tokens remain for a conversation"):
        first.options(model=MODEL)
    options = (first | preset("second", context={"summary_tokens": 1_000})).options(model=MODEL)
    assert options.context.threshold(30_000) == 16_000


def test_other_operands() -> None:
    """A preset cannot be combined with other values."""
    operands: tuple[Any, ...] = ({}, None, 1)
    for wrong in operands:
        with pytest.raises(TypeError):
            TEAM | wrong
        with pytest.raises(TypeError):
            wrong | TEAM


def test_an_agent_with_a_preset(tmp_path: Path) -> None:
    """An agent uses the fields of the team and of the program: requests, retries and the budget; it replays."""
    sonnet = "claude-sonnet-4-6"
    team = preset("team", model=sonnet, max_retries=1, budget={"interaction_usd": Decimal("0.1")})
    seen: list[str] = []
    hook = Hook("session_start", lambda payload: seen.append("hook"))
    mine = preset("mine", budget={"at_limit": "warn"}, extra={"temperature": 0}, cache=None)
    expensive = message(
        text("Once"), model=sonnet, usage={"input_tokens": 100_000, "output_tokens": 1}
    )

    async def ask(client: Any) -> list[Any]:
        agent = agentobs.Agent(client, options=(team | mine).options(hooks=(hook,)))
        first = [event async for event in agent.stream("One")]
        return [*first, *[event async for event in agent.stream("Two")]]

    refused = error(500, "api_error", retry_after_ms="1")
    provider = Provider([streamed(expensive), refused, refused])
    events = recorded_and_replayed(tmp_path, provider, ask)
    assert [each["temperature"] for each in provider.requests] == [0, 0, 0]
    assert of_kind(events, BudgetReached) == []  # the first run has ended before its next request
    assert result_of(events[-1:]).error == "api_error"
    assert seen == ["hook"]


def test_a_budget_of_two_presets() -> None:
    """The amount of one preset and the action of another one are enforced together."""
    sonnet = "claude-sonnet-4-6"
    expensive = message(
        text("Once"), model=sonnet, usage={"input_tokens": 100_000, "output_tokens": 1}
    )
    options = TEAM.options(
        model=sonnet, budget={"session_usd": Decimal("0.1"), "interaction_usd": None}
    )

    async def ask(client: Any) -> list[Any]:
        agent = agentobs.Agent(client, options=options)
        return [e for prompt in ("One", "Two") async for e in agent.stream(prompt)]

    with Provider([streamed(expensive), DONE]) as provider:
        events = play(provider, ask)
    assert of_kind(events, BudgetReached) == [BudgetReached("session_usd", continues=True)]
