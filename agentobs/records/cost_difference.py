"""The difference of two costs in words, which is a bound if a cost is a lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

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

    def words(self, amount: str, *, of: str = "") -> str:
        """Return the difference in words, such as `at least $0.10 more in B`.

        Args:
            amount: the absolute value of the difference, as text.
            of: what is added after `more` or `less`, such as ` in B`.
        """
        about = "about " if self.is_estimated else ""
        is_more = self.usd > 0
        if self.bound == "unknown":
            return unknown_difference(f"{amount} {'more' if is_more else 'less'}{of}", self.usd)
        if self.bound == "exact":
            return (
                f"{about}{amount} {'more' if is_more else 'less'}{of}"
                if self.usd
                else "no difference"
            )
        is_sign_open = is_more == (self.bound == "at_most")
        if not self.usd:
            return f"{about}the same or {'more' if self.bound == 'at_least' else 'less'}{of}"
        if is_sign_open:
            less, more = f"{amount} less{of}; may cost more", f"{amount} more{of}; may cost less"
            return f"at most {about}{more if is_more else less}"
        return f"at least {about}{amount} {'more' if is_more else 'less'}{of}"


def unknown_difference(known: str, difference: Decimal | int) -> str:
    """Return the difference of two lower bounds in words. The real difference is not known, only that of what is known.

    Args:
        known: the difference of the bounds, such as `$0.10 more in B`.
        difference: the difference of the bounds as a number.
    """
    shown = f"is {known}" if difference else "does not differ"
    return f"unknown (both are lower bounds; the known part {shown})"


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
