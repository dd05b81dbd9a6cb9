"""The environment of the calls of one response, and the state of a single call."""

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
from agentobs.agent.tool_calls.trust import Trust
from agentobs.agent.tools.tool import Bound, Tool
from agentobs.records.exchanges import Place, ToolAnswer, ToolQuestion
from agentobs.tracing import Span
from agentobs.world import Abort, World

EventReceiver = Callable[[SubAgent], Awaitable[None]]
"""Receives an event of a sub-agent."""


class Starts(Protocol):
    """Starts the sub-agents that calls request."""

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
        """Take over the usage and the grants of an agent whose result is reported now."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The environment of the calls of one response."""

    world: World
    tools: Sequence[Tool]
    permissions: Permissions
    talk: Conversation
    """Stores the grants of a person."""
    used: frozenset[str] = frozenset()
    """IDs of the calls in the conversation so far."""
    output: type[BaseModel] | None = None
    """The required structured output, if any."""
    hooks: ConversationHooks | None = None
    """The hooks that run around calls."""
    starter: Starts | None = None
    """Starts agents; None if no tool does."""
    refused: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """Results for calls of removed tools, by name."""


@dataclass(slots=True)
class Plan:
    """The state of one call until its result."""

    asked: ToolQuestion
    """The call as requested by the model."""
    question: ToolQuestion
    """The same, possibly with the input changed by hooks."""
    tool: Tool | None = None
    bound: Bound | None = None
    answer: ToolAnswer | None = None
    """The result, if the loop itself provides it."""
    concurrent: bool = True
    """Whether it may run in parallel with others; always true if the loop provides the result."""
    span: Span | None = None
    """Its span, once it is open."""
    queued: Span | None = None
    """The nested span of its wait for other calls, while it waits."""
    is_looked_at: bool = False
    """Whether its input was already examined."""
    call: Call | None = None
    decision: Decision | None = None
    waited_ns: int = 0
    """The approval wait, in nanoseconds."""
    task: asyncio.Task[ToolDone] | None = None
    output: BaseModel | None = None
    """The structured output that it provides."""
    wish: Behavior | None = None
    """The decision that hooks want for it."""
    hooks_ran: list[HookRan] = field(default_factory=list)
    """Hook runs that were not reported to consumers yet."""
    done: ToolDone | None = None
    """The final outcome, if hooks changed the output that the model sees."""
    abort: Abort | None = None
    """Stops the agent that it started."""
    trust: Trust | None = None
    """The grants and denials that the agent starts with."""
    called_id: str | None = None
    """The model's ID for the call, if it had been used before."""

    @property
    def inside(self) -> Place | None:
        """The place inside its span, once it is open."""
        return self.span.place if self.span is not None else None

    def close(self, error: BaseException | None = None, *, cancelled: bool = False) -> None:
        """Close its open spans; it may still be queued when it gets its result."""
        telemetry.close(self.queued, cancelled=True)
        telemetry.close(self.span, error, cancelled=cancelled)
        self.span = self.queued = None

    @property
    def may_begin_early(self) -> bool:
        """Whether it only reads, costs nothing, and requires no slow question to the world."""
        tool = self.tool
        if tool is None or tool.check or tool.agents is not None:
            return False
        return tool.tool_class == "read" and self.concurrent and self.answer is None

    def processed(self, *, has_run: bool) -> ProcessedCall:
        """Return the form in which the call was executed, or not if `has_run` is false."""
        coerced = self.bound.coerced if self.bound is not None else ()
        executed_input: Any = self.question.input if has_run else None
        if has_run and coerced and self.bound is not None:
            executed_input = self.bound.arguments
        return ProcessedCall(
            tool=self.tool.name if self.tool is not None else None,
            requested_input=None if self.question is self.asked else self.asked.input,
            executed_input=executed_input,
            coerced=len(coerced),
            called_id=self.called_id,
        )

    def take_hooks(self) -> list[HookRan]:
        """Return and clear the hook runs not yet reported to consumers."""
        unreported, self.hooks_ran = self.hooks_ran, []
        return unreported

    @property
    def shown(self) -> ToolQuestion:
        """A copy of the question for consumers, who may modify it."""
        return replace(self.question, input=deep_copy(self.question.input))
