"""The agent: a loop that asks the provider, runs the tools it asks for, and tells what happens."""

from __future__ import annotations

from agentobs.agent.events import (
    Event,
    Message,
    RequestStart,
    Result,
    Retry,
    TextDelta,
    ThinkingDelta,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.loop import complete, live_world, run
from agentobs.agent.state import Conversation, Options
from agentobs.agent.tools import Tool, declared, tool

__all__ = [
    "Conversation",
    "Event",
    "Message",
    "Options",
    "RequestStart",
    "Result",
    "Retry",
    "TextDelta",
    "ThinkingDelta",
    "Tool",
    "ToolDispatch",
    "ToolDone",
    "complete",
    "declared",
    "live_world",
    "run",
    "tool",
]
