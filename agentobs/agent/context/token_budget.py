"""Spending: whether a model that would stop is asked to go on, because there are tokens left to be spent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from agentobs.errors import UsageError

SPENT_SHARE = 0.9
"""From this share on a budget of tokens is spent."""
GAIN_TOKENS_MIN = 500
"""A nudge that brought fewer tokens than this was of little use."""
POOR_NUDGES_MAX = 3
"""After so many of them in a row there is no use in another one."""

Ending = Literal["spent", "diminishing"]
"""Why there is no further nudge: the budget is spent, or the last nudges brought next to nothing."""


def check(budget: int | None) -> None:
    """Check a budget of tokens.

    Raises:
        UsageError: it is none that could be spent.
    """
    if budget is not None and budget < 1:
        raise UsageError(
            f"a budget of {budget} tokens",
            where="Options.token_budget",
            todo="Give a number of at least one, or None",
        )


def ending(budget: int, output_tokens: int, nudged_at: Sequence[int]) -> Ending | None:
    """Return why the model may stop, or None where it is to be nudged.

    Args:
        budget: how many tokens it is to spend.
        output_tokens: how many it has spent.
        nudged_at: how many it had spent at each nudge so far.
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
    """Return what the model is told when it would stop too early."""
    return (
        f"You have used {output_tokens:,} of the {budget:,} tokens that are meant for this. "
        "Go on with the work: check it, and do what is left. Do not sum up."
    )
