"""Run the hooks of a conversation's lifecycle: start, prompts, compactions and end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agentobs import tracing
from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run, RunInputs
from agentobs.agent.conversation_hooks import HookRuns, turn_occasion
from agentobs.agent.events import Compaction, HookRan
from agentobs.agent.hooks import HookEvent
from agentobs.agent.model import error_classes
from agentobs.agent.state import (
    AgentOptions,
    Conversation,
    State,
    blocked_by_stop_hook,
    with_context,
)
from agentobs.agent.sub_agents.starter import finish
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World

STOP_BLOCKS_MAX = 25
"""Maximum number of times that hooks may keep an interaction from ending, so that it does not run
forever. Our choice.
"""

DEFAULT_STOP_OBJECTION = "A hook requires you to continue before you end."
"""The prompt for the model if a hook keeps the run from ending and gives no reason."""


async def run_start_hooks(run: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Run the hooks for the start of the conversation or sub-agent, and for the prompt, which they may refuse."""
    if not run.hooks.hooks:
        return
    here = telemetry.in_turn(run.inputs.world, here, run.progress.state.turn)
    start_events: list[tuple[HookEvent, Json]] = []
    if run.inputs.source == "main" and not run.progress.conversation.is_begun:
        start_events.append(
            (
                "session_start",
                {"source": "resume" if run.progress.conversation.messages else "startup"},
            )
        )
    run.progress.conversation.is_begun = True
    prompt = text_of(run.progress.state.messages[-1]["content"])
    if run.inputs.source == "sub_agent":
        start_events.append(
            ("sub_agent_start", {"agent": run.inputs.options.agent, "prompt": prompt})
        )
    else:
        start_events.append(("user_prompt_submit", {"prompt": prompt}))
    for event, facts in start_events:
        verdict, events = await _fire(run, event, here, facts)
        for hook_event in events:
            yield hook_event
        run.progress.state = with_context(run.progress.state, verdict.context)
        if verdict.stop or (verdict.blocked and event != "session_start"):
            run.end_by_hook("hook_stopped", verdict.reason)
            return


async def run_stop_hooks(
    run: Run, state: State, here: Place | None
) -> AsyncGenerator[HookRan, None]:
    """Run the hooks before a run ends with a final response. If a hook objects, the run continues."""
    event: HookEvent = "sub_agent_stop" if run.inputs.source == "sub_agent" else "stop"
    text = text_of(run.totals.responses[-1].get("content"))
    facts = {"text": text, "blocked_before": state.stop_blocks, "agent": run.inputs.options.agent}
    verdict, events = await _fire(run, event, here, facts)
    for hook_event in events:
        yield hook_event
    if not verdict.blocked or verdict.stop:
        return
    if state.stop_blocks >= STOP_BLOCKS_MAX:
        run.end_by_hook("stop_hook_prevented", verdict.reason)
        return
    run.progress.next_state = blocked_by_stop_hook(state, verdict.reason or DEFAULT_STOP_OBJECTION)


async def run_failure_hooks(run: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Run the hooks for a run that ended with a provider error. They cannot change the outcome."""
    here = (
        here if here is None else telemetry.in_turn(run.inputs.world, here, run.progress.state.turn)
    )
    facts = {
        "reason": run.progress.reason,
        "error": error_classes.name_of(run.progress.error) if run.progress.error else None,
        "agent": run.inputs.options.agent,
    }
    _, events = await _fire(run, "stop_failure", here, facts)
    for hook_event in events:
        yield hook_event


async def run_pre_compact_hooks(
    run: Run, trigger: str, tokens: int, here: Place | None
) -> HookRuns:
    """Run the hooks before a compaction. They may prevent it, or add context to the instructions of a summary."""
    facts = {"trigger": trigger, "tokens": tokens}
    return await _fire(
        run, "pre_compact", here, facts, str(run.progress.conversation.context.started_compactions)
    )


async def run_post_compact_hooks(run: Run, compaction: Compaction, here: Place | None) -> HookRuns:
    """Run the hooks after a compaction. Their context is appended to the compacted conversation."""
    facts = {
        "trigger": compaction.trigger,
        "methods": list(compaction.methods),
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
    }
    return await _fire(
        run, "post_compact", here, facts, str(run.progress.conversation.context.started_compactions)
    )


async def end(
    conversation: Conversation, *, world: World, options: AgentOptions, cancel: bool = True
) -> tuple[HookRan, ...]:
    """End a conversation: end its background agents, then run the hooks for the end of a session.

    Background hooks are awaited, each up to its timeout, because a closing event loop would cancel
    them.

    Args:
        conversation: the conversation; no run may be active in it. A later run starts it again and
            runs the start hooks.
        world: the world of its runs.
        options: the options of its runs.
        cancel: whether to stop background agents; otherwise they are awaited.

    Raises:
        ReplayEnd: a replay differs from its recording.
    """
    await finish(conversation, cancel=cancel)
    if not conversation.is_begun:
        await world.settled()
        return ()
    conversation.is_begun = False
    turn = conversation.turns
    state = State("awaiting_model", conversation.messages, turn, 0, 0, "start")
    run = Run(RunInputs(world, options, (), world.now()), conversation, state)
    _, events = await _fire(run, "session_end", tracing.place(), {"turns": turn})
    await world.settled()
    return events


async def _fire(
    run: Run, event: HookEvent, here: Place | None, facts: Json, name: str | None = None
) -> HookRuns:
    """Run the hooks for an event in the current turn; `name` distinguishes it from other such events in the turn."""
    is_about_agent = event in ("sub_agent_start", "sub_agent_stop")
    subject = {"tool": run.inputs.options.agent} if is_about_agent else {}
    occasion = turn_occasion(event, run.progress.state.turn, name, facts, **subject)
    return await run.hooks.fire(occasion, here)
