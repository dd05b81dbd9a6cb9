"""Spans: the names of ours, which say what time counts as; no span of anybody else's has one of them."""

from __future__ import annotations

OURS = frozenset((
    "interaction", "llm_request", "retry_wait", "tool", "queued", "blocked_on_user", "execution",
    "sub_agent", "hook", "compaction",
))  # fmt: skip
"""The names of `docs/spans.md`."""
