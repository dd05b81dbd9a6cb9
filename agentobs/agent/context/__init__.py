"""The length of a conversation, and its reduction before it exceeds the context window.

The functions in this package are pure; the package `compaction` uses them, and uses the world.
"""

from __future__ import annotations

from agentobs.agent.context.window_policy import Context, ContextProgress, TokenCount

__all__ = ["Context", "ContextProgress", "TokenCount"]
