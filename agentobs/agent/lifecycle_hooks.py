"""Run the hooks of a conversation's lifecycle: start, prompts, compactions and end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agentobs import tracing
from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.conversation_hooks import Fired, occasion
from agentobs.agent.events import Compaction, HookRan
from agentobs.agent.hooks import HookEvent
from agentobs.agent.model import error_classes
from agentobs.agent.state import Conversation, Options, State, kept_from_ending, with_context
from agentobs.agent.sub_agents.starter import finish
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World

STOP_BLOCKS_MAX = 25
"""How often hooks may keep an interaction from ending; without a limit, a hook could do so forever.
Our choice.
"""

ON = "A hook wants you to go on before you end."
"""The message for the model if a hook keeps it from ending without a reason."""


async def at_the_beginning(this: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Run the hooks for the start of a conversation or sub-agent, and for the prompt; they may refuse it."""
    if not this.hooks.hooks:
        return
    here = telemetry.in_turn(this.world, here, this.state.turn)
    first: list[tuple[HookEvent, Json]] = []
    if this.source == "main" and not this.talk.is_begun:
        first.append(("session_start", {"source": "resume" if this.talk.messages else "startup"}))
    this.talk.is_begun = True
    prompt = text_of(this.state.messages[-1]["content"])
    if this.source == "sub_agent":
        first.append(("sub_agent_start", {"agent": this.options.agent, "prompt": prompt}))
    else:
        first.append(("user_prompt_submit", {"prompt": prompt}))
    for event, facts in first:
        verdict, events = await _fire(this, event, here, facts)
        for ran in events:
            yield ran
        this.state = with_context(this.state, verdict.context)
        if verdict.stop or (verdict.blocked and event != "session_start"):
            this.ended_by_hook("hook_stopped", verdict.reason)
            return


async def before_the_end(
    this: Run, state: State, here: Place | None
) -> AsyncGenerator[HookRan, None]:
    """Run the hooks before a run ends with a final response; if one objects, the run continues."""
    event: HookEvent = "sub_agent_stop" if this.source == "sub_agent" else "stop"
    text = text_of(this.answers[-1].get("content"))
    facts = {"text": text, "blocked_before": state.stop_blocks, "agent": this.options.agent}
    verdict, events = await _fire(this, event, here, facts)
    for ran in events:
        yield ran
    if not verdict.blocked or verdict.stop:
        return
    if state.stop_blocks >= STOP_BLOCKS_MAX:
        this.ended_by_hook("stop_hook_prevented", verdict.reason)
        return
    this.following = kept_from_ending(state, verdict.reason or ON)


async def after_failure(this: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Run the hooks after a provider error ended a run; they cannot change the outcome."""
    here = here if here is None else telemetry.in_turn(this.world, here, this.state.turn)
    facts = {
        "reason": this.reason,
        "error": error_classes.name_of(this.error) if this.error else None,
        "agent": this.options.agent,
    }
    _, events = await _fire(this, "stop_failure", here, facts)
    for ran in events:
        yield ran


async def before_compaction(this: Run, trigger: str, tokens: int, here: Place | None) -> Fired:
    """Run the hooks before a compaction; one may prevent it, and their context is added to a
    summary's instructions.
    """
    facts = {"trigger": trigger, "tokens": tokens}
    return await _fire(this, "pre_compact", here, facts, str(this.talk.context.begun))


async def after_compaction(this: Run, done: Compaction, here: Place | None) -> Fired:
    """Run the hooks after a compaction; their context is appended to the compacted conversation."""
    facts = {
        "trigger": done.trigger,
        "methods": list(done.methods),
        "tokens_before": done.tokens_before,
        "tokens_after": done.tokens_after,
    }
    return await _fire(this, "post_compact", here, facts, str(this.talk.context.begun))


async def end(
    conversation: Conversation, *, world: World, options: Options, cancel: bool = True
) -> tuple[HookRan, ...]:
    """End a conversation: background agents end first, then the hooks for its end run.

    Background hooks are awaited, each up to its timeout, because a closing event loop would cancel
    them.

    Args:
        conversation: must not be in a run. A later run starts it again, with the hooks for the
            start.
        world: the current world.
        options: the options of its runs.
        cancel: cancel background agents; otherwise they are awaited.

    Raises:
        ReplaySays: a replay differs from its recording.
    """
    await finish(conversation, cancel=cancel)
    if not conversation.is_begun:
        await world.settled()
        return ()
    conversation.is_begun = False
    turn = conversation.turns
    state = State("awaiting_model", conversation.messages, turn, 0, 0, "start")
    this = Run(world, options, (), None, conversation, state, world.now())
    _, events = await _fire(this, "session_end", tracing.place(), {"turns": turn})
    await world.settled()
    return events


async def _fire(
    this: Run, event: HookEvent, here: Place | None, facts: Json, name: str | None = None
) -> Fired:
    """Run the hooks of an event in the current turn; `name` distinguishes it from others of its kind in the turn."""
    about = {"tool": this.options.agent} if event in ("sub_agent_start", "sub_agent_stop") else {}
    return await this.hooks.fire(occasion(event, this.state.turn, name, facts, **about), here)
