"""The agent: a loop that asks the provider, runs the tools it asks for, and tells what happens."""

from __future__ import annotations

from agentobs.agent.asking import Consent, Inbox, Reply
from agentobs.agent.budget import Budget
from agentobs.agent.events import (
    BudgetReached,
    Coercion,
    Denial,
    Event,
    FollowUp,
    Message,
    OutputRetry,
    Permission,
    RequestStart,
    Result,
    Retry,
    Steering,
    TextDelta,
    ThinkingDelta,
    Tombstone,
    ToolDispatch,
    ToolDone,
)
from agentobs.agent.listening import Broadcast, Missed
from agentobs.agent.loop import complete, live_world, run
from agentobs.agent.permissions import Decision, Permissions, Rule, from_settings
from agentobs.agent.state import Conversation, Options
from agentobs.agent.tools import Tool, declared, tool
from agentobs.world import Abort

__all__ = [
    "Abort",
    "Broadcast",
    "Budget",
    "BudgetReached",
    "Coercion",
    "Consent",
    "Conversation",
    "Decision",
    "Denial",
    "Event",
    "FollowUp",
    "Inbox",
    "Message",
    "Missed",
    "Options",
    "OutputRetry",
    "Permission",
    "Permissions",
    "Reply",
    "RequestStart",
    "Result",
    "Retry",
    "Rule",
    "Steering",
    "TextDelta",
    "ThinkingDelta",
    "Tombstone",
    "Tool",
    "ToolDispatch",
    "ToolDone",
    "complete",
    "declared",
    "from_settings",
    "live_world",
    "run",
    "tool",
]
