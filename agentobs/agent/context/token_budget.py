"""Token budgets: decide whether to prompt a model to continue (a nudge) if it is about to stop before it has spent its
budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from agentobs.errors import UsageError

SPENT_SHARE = 0.9
"""A token budget counts as spent if at least this share of it was used."""
GAIN_TOKENS_MIN = 500
"""A nudge that produced fewer tokens than this counts as poor."""
POOR_NUDGES_MAX = 3
"""After this many consecutive poor nudges, the model may stop."""

Ending = Literal["spent", "diminishing"]
"""Why there is no further nudge: the budget is spent, or the last nudges had little effect."""


def check_token_budget(budget: int | None) -> None:
    """Check a token budget.

    Raises:
        UsageError: the budget is less than 1.
    """
    if budget is not None and budget < 1:
        raise UsageError(
            f"{budget} is not a valid token budget",
            where="AgentOptions.token_budget",
            todo="Set a number of at least 1, or None",
        )


def ending_reason(budget: int, output_tokens: int, nudge_tokens: Sequence[int]) -> Ending | None:
    """Return why the model may stop, or None if it should be nudged.

    Args:
        budget: the tokens to spend.
        output_tokens: the tokens spent so far.
        nudge_tokens: the tokens that had been spent at the time of each nudge.
    """
    if output_tokens >= SPENT_SHARE * budget:
        return "spent"
    counts = [*nudge_tokens, output_tokens]
    gains = [later - earlier for earlier, later in itertools.pairwise(counts)]
    last_gains = gains[-POOR_NUDGES_MAX:]
    if len(last_gains) == POOR_NUDGES_MAX and max(last_gains) < GAIN_TOKENS_MIN:
        return "diminishing"
    return None


def nudge_text(budget: int, output_tokens: int) -> str:
    """Return the prompt for a model that stops too early."""
    return (
        f"You have used {output_tokens:,} of the {budget:,} tokens in your budget. "
        "Continue: check your work, and finish what is left. Do not summarize."
    )
