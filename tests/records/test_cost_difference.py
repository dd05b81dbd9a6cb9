"""Differences of costs: a lower bound makes the difference a bound, never an exact amount."""

from __future__ import annotations

from decimal import Decimal

import pytest

from agentobs.records.cost_difference import Cost, cost_difference

COSTS = ("0.30", "0.45"), ("0.45", "0.30"), ("0.30", "0.30")
EXACT = ("$0.15 more", "$0.15 less", "no difference")
LOW_B = ("at least $0.15 more", "at most $0.15 less; may cost more", "the same or more")
UNKNOWN = tuple(
    f"unknown (both are lower bounds; the known part {words})"
    for words in ("is $0.15 more", "is $0.15 less", "does not differ")
)
LOW_A = ("at most $0.15 more; may cost less", "at least $0.15 less", "the same or less")


@pytest.mark.parametrize(
    ("a_is_low", "b_is_low", "expected"),
    [
        (False, False, EXACT),
        (False, True, LOW_B),
        (True, False, LOW_A),
        (True, True, UNKNOWN),
    ],
)
def test_a_lower_bound_makes_the_difference_a_bound(
    a_is_low: bool, b_is_low: bool, expected: tuple[str, ...]
) -> None:
    """Each description holds for all real costs that the recorded costs allow."""
    for (a, b), words in zip(COSTS, expected, strict=True):
        found = cost_difference(Cost(Decimal(a), a_is_low), Cost(Decimal(b), b_is_low))
        assert found is not None
        assert found.words("$0.15") == words


def test_estimates_are_marked_and_unknown_costs_have_no_difference() -> None:
    """The difference of an estimate is an estimate; a missing cost has no difference."""
    found = cost_difference(Cost(Decimal(1)), Cost(Decimal(2), is_estimated=True))
    assert found is not None
    assert found.words("$1", of=" in B") == "about $1 more in B"
    assert cost_difference(Cost(None), Cost(Decimal(2))) is None
