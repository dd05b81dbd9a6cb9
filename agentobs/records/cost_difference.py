"""The difference of two costs or counts in words, which is a bound if one of them is a lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from agentobs.records.display import money

Bound = Literal["exact", "at_least", "at_most", "unknown"]


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost and its certainty."""

    usd: Decimal | None
    """US dollars; None if unknown."""
    is_low: bool = False
    """Whether the real cost may be higher."""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class CostDifference:
    """The difference of two costs: the second minus the first."""

    usd: Decimal
    bound: Bound
    """Whether the difference is exactly this amount, at least or at most this amount, or unknown."""
    is_estimated: bool

    @property
    def is_open(self) -> bool:
        """Whether it is unknown which cost is higher, so that the costs say more than their difference."""
        if self.bound == "at_least":
            return self.usd < 0
        if self.bound == "at_most":
            return self.usd > 0
        return self.bound == "unknown"

    def words(self, costs: tuple[str, str], *, of: str = "") -> str:
        """Return the difference in words, such as `at least $0.1000 more in B`. A bound is rounded down.

        Args:
            costs: both costs with their certainty, as text.
            of: what is added after `more` or `less`, such as ` in B`.
        """
        about = "about " if self.is_estimated else ""
        is_more = self.usd > 0
        amount = money(abs(self.usd), None if self.bound == "exact" else "lower_bound")
        if self.is_open:
            return open_difference(*costs)
        if self.bound == "exact":
            return (
                f"{about}{amount} {'more' if is_more else 'less'}{of}"
                if self.usd
                else "no difference"
            )
        if not self.usd:
            return f"{about}the same or {'more' if self.bound == 'at_least' else 'less'}{of}"
        return f"at least {about}{amount} {'more' if is_more else 'less'}{of}"


def open_difference(a: str, b: str) -> str:
    """Return the difference of two values in words if it is unknown which one is higher: both values.

    Args:
        a: the first value with its certainty, such as `at least $0.24`.
        b: the second value.
    """
    return f"unknown: {a} in A, {b} in B"


MOST_PERCENT = 999
"""Above this increase in percent, a share is a factor, because thousands of percent are hard to read. Our choice."""


def share_words(old: Decimal | int, new: Decimal | int) -> str:
    """Return how much a value differs from another one, such as `50%`, `<1%` or `28 times as much`, without a sign.

    Args:
        old: the first value, not 0.
        new: the second value.
    """
    old, new = Decimal(old), Decimal(new)
    percent = abs(new - old) / old * 100
    if new > old and percent > MOST_PERCENT:
        return f"{new / old:,.0f} times as much"
    return f"{percent:,.0f}%" if percent >= 1 else "<1%"


def cost_difference(a: Cost, b: Cost) -> CostDifference | None:
    """Return the difference of two costs, b minus a; None if a cost is unknown.

    If only b is a lower bound, the difference is at least b minus a. If only a is a lower bound, it is at most that.
    """
    if a.usd is None or b.usd is None:
        return None
    bounds: dict[tuple[bool, bool], Bound] = {
        (False, False): "exact",
        (False, True): "at_least",
        (True, False): "at_most",
        (True, True): "unknown",
    }
    bound = bounds[a.is_low, b.is_low]
    return CostDifference(b.usd - a.usd, bound, a.is_estimated or b.is_estimated)
