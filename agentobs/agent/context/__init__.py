"""The context: how long a conversation is, and how it is made shorter before it no longer fits.

Counting, trimming, dropping and summarising are pure; `compacting` alone asks the world.
"""

from __future__ import annotations

from agentobs.agent.context.window_policy import Context, Counted, Progress

__all__ = ["Context", "Counted", "Progress"]
