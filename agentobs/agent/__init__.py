"""The agent loop: send requests to the model, run the tools it calls, and emit events."""

from __future__ import annotations

from agentobs.agent import sdk_version as sdk_version
from agentobs.agent.broadcast import Broadcast, Missed
from agentobs.agent.budget import Budget
from agentobs.agent.compaction.overflow import compact
from agentobs.agent.context import Context
from agentobs.agent.events import (
    BackgroundResult,
    BudgetLevel,
    BudgetReached,
    Coercion,
    Compaction,
    ContextLevel,
    Continuation,
    Degraded,
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
    Retry,
    ServiceBreaker,
    SettingHeld,
    SpeedChange,
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
from agentobs.agent.presets import Preset, preset
from agentobs.agent.run_result import (
    Aborted,
    BudgetExceeded,
    ContextExceeded,
    Denial,
    HookStopped,
    InternalError,
    OutputMissing,
    ProviderError,
    Refused,
    ResponseCut,
    Result,
    RunFailed,
    ToolsMissing,
    TurnLimit,
)
from agentobs.agent.sessions.resumption import forked, resumed
from agentobs.agent.state import AgentOptions, Conversation
from agentobs.agent.sub_agents.starter import finish, sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.agent.tools.tool import Tool, declared, tool
from agentobs.agent.tools.tool_runs import Service
from agentobs.world import Abort

__all__ = [
    "Abort",
    "Aborted",
    "Adaptive",
    "AgentDefinition",
    "AgentOptions",
    "BackgroundResult",
    "Broadcast",
    "Budget",
    "BudgetExceeded",
    "BudgetLevel",
    "BudgetReached",
    "Budgeted",
    "Classifier",
    "Coercion",
    "Compaction",
    "Consent",
    "Context",
    "ContextExceeded",
    "ContextLevel",
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
    "HookStopped",
    "Inbox",
    "InternalError",
    "Message",
    "Missed",
    "Nudge",
    "OutputMissing",
    "OutputRetry",
    "Permission",
    "Permissions",
    "Preset",
    "ProviderError",
    "Refused",
    "Reply",
    "RequestStart",
    "ResponseCut",
    "Result",
    "Retry",
    "Rule",
    "RunFailed",
    "Section",
    "Service",
    "ServiceBreaker",
    "SettingHeld",
    "SpeedChange",
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
    "ToolsMissing",
    "TurnLimit",
    "compact",
    "complete",
    "declared",
    "end",
    "finish",
    "forked",
    "from_settings",
    "live_world",
    "preset",
    "resumed",
    "run",
    "sub_agents",
    "tool",
]
