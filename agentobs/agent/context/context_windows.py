"""Context windows of the models, in tokens.

The loop has its own table although genai-prices has the same numbers: window sizes affect the requests
of the loop, and an updated price list must not change how an old recording is replayed. A test compares both tables.
"""

from __future__ import annotations

from agentobs.ledger import canonical_model

WINDOW_TOKENS = 200_000
"""The window of a model that is not listed. This is the smallest window of any current model; if it is
too small, conversations are compacted too early, which costs money but breaks nothing.
"""

LARGE_TOKENS = 1_000_000
"""The window of the models in `LARGE`."""

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
"""Models with a window of a million tokens (`context_window` in genai-prices, version of 2026-11)."""

LARGE_BETA = "context-1m-2025-08-07"
"""The beta that enables the large window for `claude-sonnet-4` and `claude-sonnet-4-5`
(https://docs.claude.com/en/docs/build-with-claude/context-windows).
"""

_LARGE_BY_BETA = frozenset(("claude-sonnet-4", "claude-sonnet-4-5"))


def window_of(model: str, betas: tuple[str, ...] = ()) -> int:
    """Return a model's window in tokens, from its name and the enabled beta features."""
    name = canonical_model(model)
    if name in LARGE or (LARGE_BETA in betas and name in _LARGE_BY_BETA):
        return LARGE_TOKENS
    return WINDOW_TOKENS
