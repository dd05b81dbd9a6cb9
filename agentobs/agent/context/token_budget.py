"""Decide whether a model that is about to stop is prompted to continue, because its token budget is
not spent.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from agentobs.errors import UsageError

SPENT_SHARE = 0.9
"""A token budget counts as spent from this share on."""
GAIN_TOKENS_MIN = 500
"""A nudge that produced fewer tokens than this was of little use."""
POOR_NUDGES_MAX = 3
"""After this many such nudges in a row, there are no more."""

Ending = Literal["spent", "diminishing"]
"""Why there is no further nudge: the budget is spent, or the last nudges had little effect."""


def check(budget: int | None) -> None:
    """Validate a token budget.

    Raises:
        UsageError: it is less than 1.
    """
    if budget is not None and budget < 1:
        raise UsageError(
            f"a budget of {budget} tokens",
            where="Options.token_budget",
            todo="Give a number of at least one, or None",
        )


def ending(budget: int, output_tokens: int, nudged_at: Sequence[int]) -> Ending | None:
    """Return why the model may stop, or None if it should be nudged.

    Args:
        budget: the tokens to spend.
        output_tokens: the tokens spent so far.
        nudged_at: the tokens spent at the time of each nudge.
    """
    if output_tokens >= SPENT_SHARE * budget:
        return "spent"
    marks = [*nudged_at, output_tokens]
    gains = [later - earlier for earlier, later in itertools.pairwise(marks)]
    last = gains[-POOR_NUDGES_MAX:]
    if len(last) == POOR_NUDGES_MAX and max(last) < GAIN_TOKENS_MIN:
        return "diminishing"
    return None


def nudge(budget: int, output_tokens: int) -> str:
    """Return the text for a model that stops too early."""
    return (
        f"You have used {output_tokens:,} of the {budget:,} tokens that are meant for this. "
        "Go on with the work: check it, and do what is left. Do not sum up."
    )
