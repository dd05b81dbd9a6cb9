"""A runaway: an agent that spends more and more, or goes on while it gets nowhere.

Pure functions over what the last turns cost and said. They only look; what to do about it is for whoever
runs the agent to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Literal

Runaway = Literal["rising_cost", "diminishing_output"]

RISING_TURNS = 5
"""So many turns, each dearer than the one before it, are a runaway."""
SMALL_TURNS = 3
"""So many turns with little output are one too, when they cost more than the turns before them gave for."""
SMALL_OUTPUT_TOKENS = 500
"""Little output of a turn. [tokens]"""


def runaway(costs: Sequence[Decimal | None], output_tokens: Sequence[int] = ()) -> Runaway | None:
    """Return why the last turns look like a runaway, or None where they do not.

    `rising_cost`: each of the last five turns cost more than the turn before it, so six costs are
    looked at. A turn without a price breaks the row: nothing is known to have risen.

    `diminishing_output`: each of the last three turns had fewer than 500 tokens of output, none had more
    than the one before it, and none cost less than the one before it. An agent that works through short tool calls
    also has little output; what tells it apart is that its output does not shrink turn by turn.

    Args:
        costs: what each turn cost, oldest first; equal costs do not rise.
        output_tokens: the output of the same turns; without it only costs are looked at.
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
