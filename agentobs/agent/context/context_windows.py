"""Windows: how many tokens a model takes at once.

The table is ours, though genai-prices has the same numbers: what a window is decides what the loop asks, and
an update of a price list must not change the path of an old recording. A test compares the two.
"""

from __future__ import annotations

from agentobs.ledger import canonical_model

WINDOW_TOKENS = 200_000
"""The window of a model that is not listed. The smallest of all that are still served: too small only costs."""

LARGE_TOKENS = 1_000_000

LARGE = frozenset(
    (
        "claude-fable-5",
        "claude-fable-5-1",
        "claude-fable-5-2",
        "claude-haiku-5-5",
        "claude-mythos-5-2",
        "claude-opus-4-6",
        "claude-opus-4-7",
        "claude-opus-4-8",
        "claude-opus-5",
        "claude-opus-5-5",
        "claude-sonnet-4-6",
        "claude-sonnet-5",
        "claude-sonnet-5-5",
    )
)
"""Models with a window of a million (genai-prices as installed in 2026-11, `context_window`)."""

LARGE_BETA = "context-1m-2025-08-07"
"""The beta that gives `claude-sonnet-4` and `claude-sonnet-4-5` such a window
(https://docs.claude.com/en/docs/build-with-claude/context-windows)."""

_LARGE_BY_BETA = frozenset(("claude-sonnet-4", "claude-sonnet-4-5"))


def window_of(model: str, betas: tuple[str, ...] = ()) -> int:
    """Return a model's window in tokens, by its name and the beta features that are asked for."""
    name = canonical_model(model)
    if name in LARGE or (LARGE_BETA in betas and name in _LARGE_BY_BETA):
        return LARGE_TOKENS
    return WINDOW_TOKENS
