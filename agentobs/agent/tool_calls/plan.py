"""Planning: what the calls of one answer are run with, and one of them on its way to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import BaseModel

from agentobs.agent import telemetry
from agentobs.agent.conversation_hooks import Hooking
from agentobs.agent.events import HookRan, SubAgent, ToolDone
from agentobs.agent.permissions import Behaviour, Call, Decision, Permissions
from agentobs.agent.state import Conversation, own_copy
from agentobs.agent.telemetry import Meant
from agentobs.agent.tool_calls.trust import Trust
from agentobs.agent.tools.tool import Bound, Tool
from agentobs.records.exchanges import Place, ToolAnswer, ToolQuestion
from agentobs.tracing import Span
from agentobs.world import Abort, World

Tell = Callable[[SubAgent], Awaitable[None]]
"""Takes an event of an agent that was started."""


class Starts(Protocol):
    """Starts the agents that calls ask for."""

    async def start(
        self,
        question: ToolQuestion,
        used: Tool,
        arguments: Mapping[str, Any],
        inside: Place | None,
        abort: Abort,
        trust: Trust,
        tell: Tell,
    ) -> ToolAnswer:
        """Start an agent and return what it found, or that it works in the background."""

    def told(self, tool_use_id: str) -> None:
        """Take over what an agent used, and what was granted to it: its result is told now."""


@dataclass(frozen=True, slots=True)
class Crew:
    """What the calls of one answer are run with."""

    world: World
    tools: Sequence[Tool]
    permissions: Permissions
    talk: Conversation
    """Where the grants of a person are kept."""
    used: frozenset[str] = frozenset()
    """Ids of the calls in the conversation so far."""
    output: type[BaseModel] | None = None
    """The output that is owed, if any."""
    hooks: Hooking | None = None
    """The hooks that are fired around calls."""
    starter: Starts | None = None
    """What starts agents; None where no tool does."""
    refused: Mapping[str, ToolAnswer] = field(default_factory=dict)
    """What is answered to calls of tools that were taken away, by name."""


@dataclass(slots=True)
class Plan:
    """A call on its way to its result."""

    asked: ToolQuestion
    """What the model asked."""
    question: ToolQuestion
    """The same, or with the input that hooks want."""
    tool: Tool | None = None
    bound: Bound | None = None
    answer: ToolAnswer | None = None
    """The result, where the loop gives it itself."""
    concurrent: bool = True
    """Whether it may run beside others; a call that the loop answers disturbs nobody."""
    span: Span | None = None
    """Its span, once that is open."""
    queued: Span | None = None
    """The span of its waiting for other calls, inside of that, as long as it does."""
    is_looked_at: bool = False
    """Whether it was found out what it asks for."""
    call: Call | None = None
    decision: Decision | None = None
    waited_ns: int = 0
    """How long a person was asked for it."""
    task: asyncio.Task[ToolDone] | None = None
    output: BaseModel | None = None
    """The structured output that it gives."""
    wish: Behaviour | None = None
    """What hooks want to be done with it."""
    hooks_ran: list[HookRan] = field(default_factory=list)
    """What consumers have not yet been told of its hooks."""
    done: ToolDone | None = None
    """How it was done, where hooks changed what the model sees of it."""
    abort: Abort | None = None
    """Stops the agent that it started."""
    trust: Trust | None = None
    """What that agent begins with."""
    called_id: str | None = None
    """The id by which the model made it, where that had been used before."""

    @property
    def inside(self) -> Place | None:
        """Inside its span, once that is open."""
        return self.span.place if self.span is not None else None

    def close(self, error: BaseException | None = None, *, cancelled: bool = False) -> None:
        """Close its spans, where they are open; it may still be waiting when it gets its answer."""
        telemetry.close(self.queued, cancelled=True)
        telemetry.close(self.span, error, cancelled=cancelled)
        self.span = self.queued = None

    @property
    def may_begin_early(self) -> bool:
        """Whether it only reads, spends nothing, and nothing has to be asked for that takes long."""
        tool = self.tool
        if tool is None or tool.check or tool.agents is not None:
            return False
        return tool.tool_class == "read" and self.concurrent and self.answer is None

    def meant(self, *, has_run: bool) -> Meant:
        """Return what it meant, and what its tool got."""
        coerced = self.bound.coerced if self.bound is not None else ()
        ran: Any = self.question.input if has_run else None
        if has_run and coerced and self.bound is not None:
            ran = self.bound.arguments
        return Meant(
            tool=self.tool.name if self.tool is not None else None,
            asked=None if self.question is self.asked else self.asked.input,
            ran=ran,
            coerced=len(coerced),
            called_id=self.called_id,
        )

    def take_hooks(self) -> list[HookRan]:
        """Return what consumers have not been told of its hooks, and forget it."""
        told, self.hooks_ran = self.hooks_ran, []
        return told

    @property
    def shown(self) -> ToolQuestion:
        """The question for consumers, who may change what they get."""
        return replace(self.question, input=own_copy(self.question.input))
