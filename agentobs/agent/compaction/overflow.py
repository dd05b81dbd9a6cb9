"""Send the request of a turn, and compact its conversation if it does not fit the context window."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from agentobs import tracing
from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run, RunInputs
from agentobs.agent.compaction.compaction import (
    TARGET_SHARE,
    CompactionTask,
    automatic_task,
    emergency_task,
    emit_length,
    is_temporary,
    length,
    reactive_task,
    run_compaction,
    threshold,
)
from agentobs.agent.compaction.context_level import report_level
from agentobs.agent.context.message_groups import outline
from agentobs.agent.events import Compaction, Event
from agentobs.agent.model import error_classes
from agentobs.agent.requests.budget_check import enforce_budget
from agentobs.agent.requests.turn_request import send_turn_request
from agentobs.agent.state import AgentOptions, Conversation, State
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place
from agentobs.world import World


async def send_fitting_request(
    run: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send the LLM request of a turn, like `send_turn_request`, and compact the conversation if necessary.

    The conversation is compacted before the request if it has reached the threshold or 95% of the window, and after
    the request if the provider refused it as too long.

    Raises:
        error_classes.PROVIDER_ERRORS: the last failure; also raised if the prompt is still too long after a compaction.
        Stopped: the run was aborted.
    """
    tokens = emit_length(run, tools, here)
    for level_event in await report_level(run, tools, tokens, here):
        yield level_event
    task = automatic_task(run, tools, tokens, run.progress.conversation.context.level)
    if task is not None:
        async with aclosing(_compact_run(run, task, here)) as events:
            async for event in events:
                yield event
        if run.progress.subtype != "success":
            return
    task = emergency_task(run, tools, task)
    if task is not None:
        async with aclosing(_compact_run(run, task, here)) as events:
            async for event in events:
                yield event
    try:
        async with aclosing(send_turn_request(run, tools, dispatcher, here)) as events:
            async for event in events:
                yield event
    except error_classes.PROVIDER_ERRORS as error:
        task, refusal = reactive_task(run, tools, error), error
        if task is None:
            raise
    else:
        return
    async with aclosing(_compact_run(run, task, here)) as events:
        async for event in events:
            yield event
    if run.progress.subtype != "success":
        return
    progress = run.progress.conversation.context
    progress.tried_reactive_compaction = task.result is not None or not is_temporary(task.error)
    if task.result is None:
        raise task.error or refusal
    run.progress.state = replace(run.progress.state, transition="reactive_compaction")
    async with aclosing(send_turn_request(run, tools, dispatcher, here)) as events:
        async for event in events:
            yield event


async def _compact_run(
    run: Run, task: CompactionTask, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Compact the conversation; if the summary has used up the budget, end the run."""
    count = len(run.totals.maintenance_responses)
    async with aclosing(run_compaction(run, task, here)) as events:
        async for event in events:
            yield event
    if len(run.totals.maintenance_responses) > count:
        number = run.progress.conversation.context.started_compactions
        async for reached in enforce_budget(
            run, here, f"{run.progress.state.turn}:compacted {number}"
        ):
            yield reached


async def compact(
    conversation: Conversation,
    *,
    world: World,
    options: AgentOptions,
    tools: Sequence[Tool] = (),
    instructions: str | None = None,
) -> Compaction | None:
    """Compact a conversation now, with the session's memory or a summary; return a description of the compaction.

    Returns None if there is nothing to compact or no summary is available; the conversation is then
    unchanged.

    Args:
        conversation: the conversation, which must not be in use by a run.
        world: the world of its runs.
        options: the options for LLM requests.
        tools: the tools of the conversation.
        instructions: additional instructions for the summary.

    Raises:
        Stopped: the compaction was stopped by the world's `Abort`.
    """
    turn = conversation.turns + 1
    state = State("awaiting_model", conversation.messages, turn, 0, 0, "start")
    run = Run(RunInputs(world, options, tools, world.now()), conversation, state)
    here = telemetry.in_turn(world, tracing.place(), turn)
    limit = threshold(run)
    target = int(TARGET_SHARE * limit)
    task = CompactionTask("manual", tools, length(run, tools), limit, target, instructions)
    before = outline(conversation.messages)
    async with aclosing(run_compaction(run, task, here)) as events:
        async for _ in events:
            pass
    if task.result is not None:
        # This session might not send another request, so record the result here for a later resume.
        question = {"before": before, "messages": list(conversation.messages)}
        await telemetry.ask(
            world, here, "compacted", f"{turn}:{conversation.context.started_compactions}", question
        )
    return task.result
