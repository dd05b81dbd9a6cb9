"""The objects that the calls of one response share, and the state of a single call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import BaseModel

from agentobs.agent import telemetry
from agentobs.agent.conversation_hooks import ConversationHooks
from agentobs.agent.events import HookRan, SubAgent, ToolDone
from agentobs.agent.permissions import Behavior, Call, Decision, Permissions
from agentobs.agent.state import Conversation, deep_copy
from agentobs.agent.telemetry import ProcessedCall
from agentobs.agent.tool_calls.call_effects import Effects
from agentobs.agent.tool_calls.trust import Trust
from agentobs.agent.tools.tool import Bound, Tool
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import Place, ToolAnswer, ToolQuestion
from agentobs.tracing import Span
from agentobs.world import Abort, World

EventReceiver = Callable[[SubAgent], Awaitable[None]]
"""Receives an event of a sub-agent."""


class AgentStarter(Protocol):
    """Starts the sub-agents that tool calls request."""

    async def start(
        self,
        question: ToolQuestion,
        tool: Tool,
        arguments: Mapping[str, Any],
        place: Place | None,
        abort: Abort,
        trust: Trust,
        receive: EventReceiver,
    ) -> ToolAnswer:
        """Start an agent and return its result, or a note that it runs in the background."""

    def collect(self, tool_use_id: str) -> None:
        """Merge the usage and the grants of an agent into the conversation, when its result is reported."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The objects that the calls of one response share."""

    world: World
    tools: Sequence[Tool]
    permissions: Permissions
    conversation: Conversation
    """The conversation, which stores the grants of a person."""
    used: frozenset[str] = frozenset()
    """IDs of the calls in the conversation so far."""
    output: type[BaseModel] | None = None
    """The type of the structured output; None if it is not required."""
    hooks: ConversationHooks | None = None
    """The hooks that run before and after calls."""
    starter: AgentStarter | None = None
    """Starts agents; None if no tool can start agents."""
    refused: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """The results for calls of tools that are no longer available, by name of the tool."""


@dataclass(slots=True)
class Plan:
    """The state of one tool call until its result is reported."""

    requested: ToolQuestion
    """The call as requested by the model."""
    question: ToolQuestion
    """The call to execute. Hooks or a person may have changed its input, and a fallback may have replaced its tool."""
    tool: Tool | None = None
    bound: Bound | None = None
    effects: Effects | None = None
    """The effects of the call with its current input; None if there is no tool or the input is invalid."""
    answer: ToolAnswer | None = None
    """The result, if the loop itself provides it."""
    concurrent: bool = True
    """Whether the call may run in parallel with other calls; always true if the loop or a hook provides the result."""
    span: Span | None = None
    """The span of the call, while it is open."""
    queued: Span | None = None
    """The nested span of the wait for other calls, while the call waits."""
    is_bound: bool = False
    """Whether the tool was already looked up and bound to the input."""
    call: Call | None = None
    decision: Decision | None = None
    waited_ns: int = 0
    """The approval wait, in nanoseconds."""
    approval_requested: bool = False
    """Whether an approval of the call was requested from a person or the classifier."""
    task: asyncio.Task[ToolDone] | None = None
    output: BaseModel | None = None
    """The structured output that the call provides."""
    hook_decision: Behavior | None = None
    """The decision of the hooks before the call."""
    hooks_ran: list[HookRan] = field(default_factory=list)
    """The hook runs that were not reported to consumers yet."""
    done: ToolDone | None = None
    """The final result, if hooks changed the output that the model sees."""
    abort: Abort | None = None
    """Stops the sub-agent that the call started."""
    trust: Trust | None = None
    """The grants and denials with which the sub-agent starts."""
    called_id: str | None = None
    """The original ID from the model, if the call was renamed because this ID had already been used."""

    @property
    def inside(self) -> Place | None:
        """The place inside the span of the call, while it is open."""
        return self.span.place if self.span is not None else None

    def close(self, error: BaseException | None = None, *, cancelled: bool = False) -> None:
        """Close the open spans of the call. It may still be queued when it gets its result."""
        telemetry.close(self.queued, cancelled=True)
        telemetry.close(self.span, error, cancelled=cancelled)
        self.span = self.queued = None

    @property
    def may_start_early(self) -> bool:
        """Whether the call may start early: it only reads, starts no agent, and its tool has no check, because a check
        may be slow.
        """
        tool, effects = self.tool, self.effects
        if tool is None or effects is None or tool.check or tool.agents is not None:
            return False
        return effects.read_only and self.concurrent and self.answer is None

    @property
    def needs_approval(self) -> bool:
        """Whether approval must be requested before the call can start."""
        decision = self.decision
        return self.answer is None and decision is not None and decision.behavior == "ask"

    @property
    def shown_name(self) -> str:
        """The name of the tool, as a label if the program declared the tool."""
        return self.question.name if self.tool is None else declared_label(self.tool.name)

    def processed(self, *, has_run: bool) -> ProcessedCall:
        """Return the call as it was processed; `has_run` is whether the tool was executed."""
        is_unchanged = self.question.input is self.requested.input
        coerced = self.bound.coerced if self.bound is not None else ()
        executed_input: Any = self.question.input if has_run else None
        if has_run and coerced and self.bound is not None:
            executed_input = self.bound.arguments
        return ProcessedCall(
            tool=self.tool.name if self.tool is not None else None,
            requested_input=None if is_unchanged else self.requested.input,
            executed_input=executed_input,
            coerced=len(coerced),
            called_id=self.called_id,
        )

    def take_hook_runs(self) -> list[HookRan]:
        """Return and clear the hook runs that were not reported to consumers yet."""
        unreported, self.hooks_ran = self.hooks_ran, []
        return unreported

    @property
    def question_copy(self) -> ToolQuestion:
        """A copy of the question for consumers, because they may modify it."""
        return replace(self.question, input=deep_copy(self.question.input))
