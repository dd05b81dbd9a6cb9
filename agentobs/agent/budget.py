"""Spending budgets, and pure functions that decide whether a limit is reached.

The budget is checked before each LLM request, so one response may exceed it, but no more.
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
    """Spending limits; None means no limit.

    If a model has no price, no limit in money can be enforced. This counts as a limit of its own.
    """

    interaction_usd: Decimal | None = None
    """For one run, in USD."""
    session_usd: Decimal | None = None
    """For all runs of one conversation, in USD."""
    day_usd: Decimal | None = None
    """For everything recorded in this home since midnight UTC, in USD."""
    session_turns: int | None = None
    """Turns that used tools, in all runs of one conversation."""
    runaway: bool = False
    """Whether turns with rising cost or shrinking output also count as a limit."""
    at_limit: Literal["stop", "ask", "warn"] = "stop"
    """Action at a limit: end the run, ask a person whether to continue, or only emit an event."""

    def __post_init__(self) -> None:
        """Refuse limits that are inexact or negative."""
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
        """Whether the spending of this process is limited."""
        return any(limit is not None for limit in (self.interaction_usd, self.session_usd))

    @property
    def is_priced(self) -> bool:
        """Whether prices are needed to enforce the budget."""
        return self.runaway or self.holds_money


def _is_amount(value: object) -> bool:
    return isinstance(value, Decimal) and value.is_finite() and value >= 0


@dataclass(frozen=True, slots=True)
class Spent:
    """The amounts spent so far."""

    interaction_usd: Decimal = Decimal(0)
    session_usd: Decimal = Decimal(0)
    day_usd: Decimal = Decimal(0)
    session_turns: int = 0
    unpriced_calls: int = 0
    """Responses of models without a price, which the amounts do not include."""
    runaway: Runaway | None = None
    """The runaway sign found in the run's last turns, if any."""


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
