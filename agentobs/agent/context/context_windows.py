"""Context windows of the models, in tokens.

We keep our own table although genai-prices has the same numbers. Window sizes affect the loop's
requests, and a price list update must not change the path of an old recording. A test compares the
two.
"""

from __future__ import annotations

from agentobs.ledger import canonical_model

WINDOW_TOKENS = 200_000
"""The window of an unlisted model. The smallest still served: a window that is too small only adds
cost.
"""

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
