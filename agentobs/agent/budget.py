"""Spending budgets, and pure functions that decide whether a limit is reached.

The budget is checked before each LLM request, so only the last response can exceed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from agentobs.agent.arguments import check_value
from agentobs.agent.events import Limit
from agentobs.errors import UsageError
from agentobs.ledger import Runaway

MoneyLimit = Literal["interaction_usd", "session_usd", "day_usd"]
"""The limits in money."""

AtLimit = Literal["stop", "ask", "warn"]
"""The actions at a limit."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Spending limits; None means no limit.

    If a used model has no price, limits in money cannot be enforced. This counts as a reached limit,
    `unpriced`.
    """

    interaction_usd: Decimal | None = None
    """Limit for one run, in USD."""
    session_usd: Decimal | None = None
    """Limit for all runs of one conversation, in USD."""
    day_usd: Decimal | None = None
    """Limit for all spending that was recorded in this home since midnight UTC, in USD."""
    session_turns: int | None = None
    """Limit for the number of turns that used tools, in all runs of one conversation."""
    runaway: bool = False
    """Whether several turns with rising cost or shrinking output also count as a reached limit. This is
    off by default, because the cost of a turn also rises while a useful conversation grows.
    """
    repeated_turns: int | None = 8
    """Limit for consecutive turns of one run that make the same calls and get the same results, at least 2.
    A message from a person starts a new count. Our choice: such an agent makes no progress, but a tool may
    be polled several times.
    """
    at_limit: AtLimit = "stop"
    """Action at a limit: end the run, ask a person whether to continue, or only emit an event."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: an amount is inexact or negative, a number of turns is too small, or a value is of the wrong
                kind.
        """
        for name in ("interaction_usd", "session_usd", "day_usd"):
            value = getattr(self, name)
            if value is not None and not _is_amount(value):
                raise UsageError(
                    f"{value!r} is not a valid amount",
                    where=f"Budget.{name}",
                    todo='Set an exact amount in USD that is not negative, such as Decimal("0.50")',
                )
        turns = self.session_turns
        if turns is not None and not (type(turns) is int and turns >= 0):
            raise UsageError(
                f"{turns!r} is not a valid number of turns",
                where="Budget.session_turns",
                todo="Set 0 or more, or None for no limit",
            )
        check_value(
            isinstance(self.runaway, bool), self.runaway, "Budget.runaway", "Pass True or False"
        )
        if self.at_limit not in get_args(AtLimit):
            raise UsageError(
                f"unknown value {self.at_limit!r}",
                where="Budget.at_limit",
                todo=f"Use one of {', '.join(get_args(AtLimit))}",
            )
        repeated = self.repeated_turns
        if repeated is not None and not (type(repeated) is int and repeated >= 2):
            raise UsageError(
                f"{repeated!r} is not a valid number of turns",
                where="Budget.repeated_turns",
                todo="Set 2 or more, or None for no limit",
            )

    @property
    def limits_money(self) -> bool:
        """Whether the money that the interaction or the session may spend is limited."""
        return any(limit is not None for limit in (self.interaction_usd, self.session_usd))

    @property
    def is_priced(self) -> bool:
        """Whether prices are needed to enforce the budget."""
        return self.runaway or self.limits_money


def _is_amount(value: object) -> bool:
    return isinstance(value, Decimal) and value.is_finite() and value >= 0


@dataclass(frozen=True, slots=True)
class Spent:
    """The amounts spent so far."""

    interaction_usd: Decimal = Decimal(0)
    session_usd: Decimal = Decimal(0)
    day_usd: Decimal = Decimal(0)
    session_turns: int = 0
    repeated_turns: int = 1
    """Number of most recent turns of the run that made the same calls and got the same results."""
    unpriced_calls: int = 0
    """Number of responses of models without a price, which the amounts do not include."""
    runaway: Runaway | None = None
    """The sign of a runaway in the last turns of the run; None if there is none."""


def reached(budget: Budget, spent: Spent, allowed: Set[Limit] = frozenset()) -> Limit | None:
    """Return the narrowest limit that was reached, or None if none was reached.

    Args:
        budget: the limits.
        spent: the amounts.
        allowed: the limits beyond which the run may continue.
    """
    return next((limit for limit in _reached(budget, spent) if limit not in allowed), None)


LEVELS = (95, 80)
"""The shares of a budget in money that are reported, in percent, the highest first. Our choice."""

MONEY_LIMITS: tuple[MoneyLimit, ...] = ("interaction_usd", "session_usd", "day_usd")


def reached_levels(budget: Budget, spent: Spent) -> dict[MoneyLimit, int]:
    """Return the highest share that is reached of each limit in money, in percent.

    A limit below the first share has the value 0. A limit that is used up is left out.
    """
    found: dict[MoneyLimit, int] = {}
    for name in MONEY_LIMITS:
        limit, amount = getattr(budget, name), getattr(spent, name)
        if limit is not None and amount < limit:
            found[name] = next((each for each in LEVELS if 100 * amount >= each * limit), 0)
    return found


def _reached(budget: Budget, spent: Spent) -> Iterator[Limit]:
    if budget.interaction_usd is not None and spent.interaction_usd >= budget.interaction_usd:
        yield "interaction_usd"
    if budget.session_usd is not None and spent.session_usd >= budget.session_usd:
        yield "session_usd"
    if budget.day_usd is not None and spent.day_usd >= budget.day_usd:
        yield "day_usd"
    if budget.session_turns is not None and spent.session_turns >= budget.session_turns:
        yield "session_turns"
    if budget.limits_money and spent.unpriced_calls:
        yield "unpriced"
    if budget.repeated_turns is not None and spent.repeated_turns >= budget.repeated_turns:
        yield "repeated_calls"
    if budget.runaway and spent.runaway is not None:
        yield spent.runaway
