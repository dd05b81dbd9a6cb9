"""Send a turn's request with a conversation that fits the window, and compact on demand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from agentobs import tracing
from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.compaction.compaction import (
    TARGET_SHARE,
    Need,
    automatic,
    compaction,
    length,
    may_pass,
    reactive,
    threshold,
)
from agentobs.agent.context.message_groups import outline
from agentobs.agent.events import Compaction, Event
from agentobs.agent.model import error_classes
from agentobs.agent.requests.budget_check import within_budget
from agentobs.agent.requests.turn_request import ask
from agentobs.agent.state import Conversation, Options, State
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place
from agentobs.world import World


async def ask_fitting(
    this: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send the LLM request of a turn like `ask`, and compact the conversation first if necessary.

    Raises:
    error_classes.PROVIDER_ERRORS: the last failure, also if the prompt stays too long.
        Stopped: the run was aborted.
    """
    need = automatic(this, tools, here)
    if need is not None:
        async with aclosing(_compacted(this, need, here)) as events:
            async for event in events:
                yield event
        if this.subtype != "success":
            return
    try:
        async with aclosing(ask(this, tools, dispatcher, here)) as events:
            async for event in events:
                yield event
    except error_classes.PROVIDER_ERRORS as error:
        need, refused = reactive(this, tools, error), error
        if need is None:
            raise
    else:
        return
    async with aclosing(_compacted(this, need, here)) as events:
        async for event in events:
            yield event
    if this.subtype != "success":
        return
    progress = this.talk.context
    progress.has_reacted = need.done is not None or not may_pass(need.error)
    if need.done is None:
        raise need.error or refused
    this.state = replace(this.state, transition="reactive_compaction")
    async with aclosing(ask(this, tools, dispatcher, here)) as events:
        async for event in events:
            yield event


async def _compacted(this: Run, need: Need, here: Place | None) -> AsyncGenerator[Event, None]:
    """Compact the conversation; if the summary has used up the budget, the run ends."""
    answers = len(this.upkept)
    async with aclosing(compaction(this, need, here)) as events:
        async for event in events:
            yield event
    if len(this.upkept) > answers:
        number = this.talk.context.begun
        async for reached in within_budget(this, here, f"{this.state.turn}:compacted {number}"):
            yield reached


async def compact(
    conversation: Conversation,
    *,
    world: World,
    options: Options,
    tools: Sequence[Tool] = (),
    instructions: str | None = None,
) -> Compaction | None:
    """Compact a conversation now, with the session's memory or a summary; return what was done.

    Returns None if there is nothing to compact or no summary is available; the conversation is then
    unchanged.

    Args:
        conversation: must not be in a run.
        world: the current world.
        options: the options for LLM requests.
        tools: the tools of the conversation.
        instructions: additional instructions for the summary.

    Raises:
        Stopped: the world's abort stopped it.
    """
    turn = conversation.turns + 1
    state = State("awaiting_model", conversation.messages, turn, 0, 0, "start")
    this = Run(world, options, tools, None, conversation, state, world.now())
    here = telemetry.in_turn(world, tracing.place(), turn)
    limit = threshold(this)
    target = int(TARGET_SHARE * limit)
    need = Need("manual", tools, length(this, tools), limit, target, instructions)
    before = outline(conversation.messages)
    async with aclosing(compaction(this, need, here)) as events:
        async for _ in events:
            pass
    if need.done is not None:
        # No request may follow in this session, so record the result here for a later resume.
        question = {"before": before, "messages": list(conversation.messages)}
        await telemetry.ask(
            world, here, "compacted", f"{turn}:{conversation.context.begun}", question
        )
    return need.done
