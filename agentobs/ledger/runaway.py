"""Detect a runaway: an agent whose cost keeps rising, or that continues without progress.

Pure functions of the cost and output of the last turns. They only detect a runaway; the caller decides how to react.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Literal

Runaway = Literal["rising_cost", "diminishing_output"]

RISING_TURNS = 5
"""The number of consecutive turns, each more expensive than the previous one, that make a runaway."""
SMALL_TURNS = 3
"""The number of consecutive turns with little output that make a runaway if their cost does not fall."""
SMALL_OUTPUT_TOKENS = 500
"""A turn with less output than this has little output. [tokens]"""


def runaway(costs: Sequence[Decimal | None], output_tokens: Sequence[int] = ()) -> Runaway | None:
    """Return why the last turns look like a runaway, or None if they do not.

    `rising_cost`: each of the last five turns cost more than the previous one, so six costs are compared. A turn
    without a price interrupts the sequence, because it cannot be compared.

    `diminishing_output`: each of the last three turns had fewer than 500 tokens of output, each had less than the
    previous one, and none cost less than the previous one. An agent that works with short tool calls also has little
    output, but its output does not shrink from turn to turn.

    Args:
        costs: the cost of each turn, oldest first; equal costs do not count as rising.
        output_tokens: the output of the same turns; if it is missing, only costs are compared.
    """
    if _is_rising(costs[-RISING_TURNS - 1 :]):
        return "rising_cost"
    if _is_diminishing(costs[-SMALL_TURNS:], output_tokens[-SMALL_TURNS:]):
        return "diminishing_output"
    return None


def _is_rising(costs: Sequence[Decimal | None]) -> bool:
    if len(costs) <= RISING_TURNS:
        return False
    return all(a is not None and b is not None and a < b for a, b in pairwise(costs))


def _is_diminishing(costs: Sequence[Decimal | None], outputs: Sequence[int]) -> bool:
    if not len(costs) == len(outputs) == SMALL_TURNS:
        return False
    return (
        all(output < SMALL_OUTPUT_TOKENS for output in outputs)
        and all(a > b for a, b in pairwise(outputs))
        and all(a is not None and b is not None and a <= b for a, b in pairwise(costs))
    )
