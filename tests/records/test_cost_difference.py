"""Differences of costs: a lower bound makes the difference a bound, never an exact amount."""

from __future__ import annotations

from decimal import Decimal

import pytest

from agentobs.records.cost_difference import Cost, cost_difference, share_words

COSTS = ("0.30", "0.45"), ("0.45", "0.30"), ("0.30", "0.30")
EXACT = ("$0.1500 more", "$0.1500 less", "no difference")
OPEN = "unknown: at least $1 in A, $2 in B"
"""The words if it is unknown which cost is higher: both costs."""
LOW_B = ("at least $0.1500 more", OPEN, "the same or more")
UNKNOWN = (OPEN, OPEN, OPEN)
LOW_A = (OPEN, "at least $0.1500 less", "the same or less")


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
        assert found.words(("at least $1", "$2")) == words
        assert found.is_open is (words == OPEN)


def test_a_bound_is_rounded_down() -> None:
    """A difference that is at least an amount is never shown as at least a higher one."""
    found = cost_difference(Cost(Decimal("0.00100")), Cost(Decimal("0.00318"), is_low=True))
    assert found is not None
    assert found.words(("$0.0010", "at least $0.0031")) == "at least $0.0021 more"
    found = cost_difference(Cost(Decimal("0.00100")), Cost(Decimal("0.00318")))
    assert found is not None
    assert found.words(("$0.0010", "$0.0032")) == "$0.0022 more"


def test_estimates_are_marked_and_unknown_costs_have_no_difference() -> None:
    """The difference of an estimate is an estimate; a missing cost has no difference."""
    found = cost_difference(Cost(Decimal(1)), Cost(Decimal(2), is_estimated=True))
    assert found is not None
    assert found.words(("$1", "about $2"), of=" in B") == "about $1.0000 more in B"
    assert cost_difference(Cost(None), Cost(Decimal(2))) is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [(100, 150, "50%"), (100, 1_099, "999%"), (100, 1_100, "11 times as much"), (10, 1_020, "102 times as much"),
     (10_000, 10_001, "<1%"), (1_020, 10, "99%")],
)  # fmt: skip
def test_a_large_share_is_a_factor(old: int, new: int, words: str) -> None:
    """Above 999 percent, an increase is a factor."""
    assert share_words(old, new) == words
    assert share_words(Decimal(old), Decimal(new)) == words
