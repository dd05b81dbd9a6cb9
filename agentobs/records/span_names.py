"""Reserved names of built-in spans, which determine the category of their time."""

from __future__ import annotations

OURS = frozenset((
    "interaction", "llm_request", "retry_wait", "tool", "queued", "blocked_on_user", "execution",
    "sub_agent", "hook", "compaction",
))  # fmt: skip
"""The names in `docs/spans.md`."""
