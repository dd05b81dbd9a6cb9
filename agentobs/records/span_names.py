"""Reserved names of built-in spans, which determine the category of their time."""

from __future__ import annotations

RESERVED_SPAN_NAMES = frozenset((
    "interaction", "llm_request", "retry_wait", "tool", "queued", "blocked_on_user", "execution",
    "sub_agent", "hook", "compaction",
))  # fmt: skip
"""The names that docs/spans.md describes."""
