"""Budgets: how much may be spent, and whether that is reached. Decisions only.

A budget is looked at before each request to the model, so that one answer may go beyond it, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from agentobs.agent.events import Limit
from agentobs.errors import UsageError
from agentobs.ledger import Runaway


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent; None sets no limit.

    Where a model has no price, no limit in money can be held: that is a limit of its own.
    """

    interaction_usd: Decimal | None = None
    """By one run, in USD."""
    session_usd: Decimal | None = None
    """By all runs of one conversation, in USD."""
    day_usd: Decimal | None = None
    """By everything that is recorded in this home since midnight UTC, in USD."""
    session_turns: int | None = None
    """Turns that used tools, in all runs of one conversation."""
    runaway: bool = False
    """Whether turns that cost more and more, or say less and less, count as a limit, too."""
    at_limit: Literal["stop", "ask", "warn"] = "stop"
    """What follows: the run ends; a person is asked whether it may go on; an event is told."""

    def __post_init__(self) -> None:
        """Refuse limits that are not exact or below zero."""
        for name in ("interaction_usd", "session_usd", "day_usd"):
            value = getattr(self, name)
            if value is not None and not _is_amount(value):
                raise UsageError(
                    f"a budget of {value!r}",
                    where=f"Budget.{name}",
                    todo='Give an amount of at least zero in USD, exact: Decimal("0.50")',
                )

    @property
    def holds_money(self) -> bool:
        """Whether what this process spends is held to a limit."""
        return any(limit is not None for limit in (self.interaction_usd, self.session_usd))

    @property
    def is_priced(self) -> bool:
        """Whether anything has to be priced to hold it."""
        return self.runaway or self.holds_money


def _is_amount(value: object) -> bool:
    return isinstance(value, Decimal) and value.is_finite() and value >= 0


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent so far."""

    interaction_usd: Decimal = Decimal(0)
    session_usd: Decimal = Decimal(0)
    day_usd: Decimal = Decimal(0)
    session_turns: int = 0
    unpriced_calls: int = 0
    """Answers of models without a price, which the money leaves out."""
    runaway: Runaway | None = None
    """What the last turns of the run look like."""


def reached(budget: Budget, spent: Spent) -> Limit | None:
    """Return the narrowest limit that was reached, or None."""
    if budget.interaction_usd is not None and spent.interaction_usd >= budget.interaction_usd:
        return "interaction_usd"
    if budget.session_usd is not None and spent.session_usd >= budget.session_usd:
        return "session_usd"
    if budget.day_usd is not None and spent.day_usd >= budget.day_usd:
        return "day_usd"
    if budget.session_turns is not None and spent.session_turns >= budget.session_turns:
        return "session_turns"
    if budget.holds_money and spent.unpriced_calls:
        return "unpriced"
    return spent.runaway if budget.runaway else None
