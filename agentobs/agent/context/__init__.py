"""The length of a conversation, and its reduction before it exceeds the context window.

Counting, trimming, dropping and summarizing are pure; only `compaction` uses the world.
"""

from __future__ import annotations

from agentobs.agent.context.window_policy import Context, Counted, Progress

__all__ = ["Context", "Counted", "Progress"]
