"""The words that people read for the values of columns: pages, figures and the terminal share them."""

from __future__ import annotations

from types import MappingProxyType

PARTS_OF_TIME = MappingProxyType(
    {
        "model": "model",
        "tool": "tools",
        "queued": "queued",
        "person": "waiting for the user",
        "hook": "hooks",
        "retry_wait": "retry backoff",
        "own": "agent code",
    }
)
"""The categories of time."""
UNSEEN_WAITS = "including any wait for approval (not recorded)"
"""What the time of tools contains if the client does not record how long it waited for an approval."""
INCLUDING_WAITS = "include any wait for approval (not recorded)"
"""The same, after a subject such as `the times of calls`."""
ESTIMATED_TIMES = f"estimated from wire timing, {UNSEEN_WAITS}"
"""How the time of a tool is known if the client does not record it."""
STEP_KINDS = MappingProxyType(
    {
        "request": "request",
        "tool": "call",
        "agent": "sub-agent",
        "sub_agent": "sub-agent",
        "person": "wait for the user:",
        "queued": "queued:",
        "retry_wait": "retry backoff",
        "hook": "hook",
        "compaction": "compaction",
        "span": "span",
        "interaction": "interaction",
        "group": "steps",
        "command": "command",
        "mcp_call": "MCP call",
        "file_change": "file",
    }
)
"""The kinds of the steps of a session, as prefixes of their names."""
SPANS = MappingProxyType(
    {
        "llm_request": "request",
        "retry_wait": "retry backoff",
        "blocked_on_user": "wait for the user",
        "sub_agent": "sub-agent",
        "tool": "call",
    }
)
"""The built-in spans whose names are not their words."""
COST_STATUSES = MappingProxyType(
    {
        "exact": "exact",
        "lower_bound": "at least",
        "estimated": "estimated",
        "unknown_model": "unknown model",
        "unpriced": "no price",
    }
)
"""How certain a cost is."""
ATTENTION_ORDER = (
    "failed sessions, newest day (UTC) first; then failed or denied tool calls; then failure signatures; then all "
    "others; in each group, the most expensive first"
)
"""The order in which sessions need attention. A failed session of unknown cost is the first of its day."""


def message_counts(count: int, new: int) -> str:
    """Return how many messages a request has, and how many of them are new, see `new_messages`."""
    return f"{count:,}, {f'{new:,}' if new else 'none'} of them new since the previous request and its response"


NO_IDENTICAL_STEP = "The sessions have no identical step. They may be runs of different tasks."
"""What precedes the comparison of two sessions without an identical step."""
