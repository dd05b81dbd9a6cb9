"""The agent loop: send requests to the model, run the tools it calls, and emit events."""

from __future__ import annotations

from agentobs.agent import sdk_version as sdk_version
from agentobs.agent.broadcast import Broadcast, Missed
from agentobs.agent.budget import Budget
from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.agent.events import (
    BackgroundResult,
    BudgetReached,
    Coercion,
    Compaction,
    Continuation,
    Degraded,
    Denial,
    Event,
    Fallback,
    FollowUp,
    Heartbeat,
    HookRan,
    Message,
    Nudge,
    OutputRetry,
    Permission,
    RequestStart,
    Result,
    Retry,
    ServiceBreaker,
    SettingHeld,
    Steering,
    SubAgent,
    TextDelta,
    ThinkingCleared,
    ThinkingDelta,
    Tombstone,
    ToolDispatch,
    ToolDone,
    ToolWithdrawn,
)
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.execution.live_answers import Consent, Inbox, Reply
from agentobs.agent.hooks import Hook
from agentobs.agent.lifecycle_hooks import end
from agentobs.agent.loop import complete, live_world, run
from agentobs.agent.model.prompt import Section, SystemPrompt
from agentobs.agent.model.thinking import Adaptive, Budgeted
from agentobs.agent.permissions import Decision, Permissions, Rule, from_settings
from agentobs.agent.sessions.resumption import forked, resumed
from agentobs.agent.state import Conversation, Options
from agentobs.agent.sub_agents.starter import finish, sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.agent.tools.tool import Tool, declared, tool
from agentobs.agent.tools.tool_runs import Service
from agentobs.world import Abort

__all__ = [
    "Abort",
    "Adaptive",
    "AgentDefinition",
    "BackgroundResult",
    "Broadcast",
    "Budget",
    "BudgetReached",
    "Budgeted",
    "Classifier",
    "Coercion",
    "Compaction",
    "Consent",
    "Context",
    "Continuation",
    "Conversation",
    "Decision",
    "Degraded",
    "Denial",
    "Event",
    "Fallback",
    "FollowUp",
    "Heartbeat",
    "Hook",
    "HookRan",
    "Inbox",
    "Message",
    "Missed",
    "Nudge",
    "Options",
    "OutputRetry",
    "Permission",
    "Permissions",
    "Reply",
    "RequestStart",
    "Result",
    "Retry",
    "Rule",
    "Section",
    "Service",
    "ServiceBreaker",
    "SettingHeld",
    "Steering",
    "SubAgent",
    "SystemPrompt",
    "TextDelta",
    "ThinkingCleared",
    "ThinkingDelta",
    "Tombstone",
    "Tool",
    "ToolDispatch",
    "ToolDone",
    "ToolWithdrawn",
    "compact",
    "complete",
    "declared",
    "end",
    "finish",
    "forked",
    "from_settings",
    "live_world",
    "resumed",
    "run",
    "sub_agents",
    "tool",
]
