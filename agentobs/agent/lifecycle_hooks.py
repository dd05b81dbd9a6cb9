"""Occasions: the hooks of a conversation as a whole: its beginning, prompts, compactions, and ends."""

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
from agentobs.provider.messages import text_of
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World

STOP_BLOCKS_MAX = 25
"""How often hooks may keep an interaction from ending; a hook that always does would never let it go. Our choice."""

ON = "A hook wants you to go on before you end."
"""What the model is told where a hook keeps it from ending and gives no reason."""


async def at_the_beginning(this: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Fire the hooks of a conversation's or sub-agent's beginning, and of the prompt; they may refuse it."""
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
        verdict, told = await _fire(this, event, here, facts)
        for ran in told:
            yield ran
        this.state = with_context(this.state, verdict.context)
        if verdict.stop or (verdict.blocked and event != "session_start"):
            this.ended_by_hook("hook_stopped", verdict.reason)
            return


async def before_the_end(
    this: Run, state: State, here: Place | None
) -> AsyncGenerator[HookRan, None]:
    """Fire the hooks before a run ends with an answer; one that objects makes it go on."""
    event: HookEvent = "sub_agent_stop" if this.source == "sub_agent" else "stop"
    said = text_of(this.answers[-1].get("content"))
    facts = {"text": said, "blocked_before": state.stop_blocks, "agent": this.options.agent}
    verdict, told = await _fire(this, event, here, facts)
    for ran in told:
        yield ran
    if not verdict.blocked or verdict.stop:
        return
    if state.stop_blocks >= STOP_BLOCKS_MAX:
        this.ended_by_hook("stop_hook_prevented", verdict.reason)
        return
    this.following = kept_from_ending(state, verdict.reason or ON)


async def after_failure(this: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Fire the hooks after an error of the provider has ended a run; they cannot change that."""
    here = here if here is None else telemetry.in_turn(this.world, here, this.state.turn)
    facts = {
        "reason": this.reason,
        "error": error_classes.name_of(this.error) if this.error else None,
        "agent": this.options.agent,
    }
    _, told = await _fire(this, "stop_failure", here, facts)
    for ran in told:
        yield ran


async def before_compaction(this: Run, trigger: str, tokens: int, here: Place | None) -> Fired:
    """Fire the hooks before a compaction: one that objects prevents it, and what they add is minded in a summary."""
    facts = {"trigger": trigger, "tokens": tokens}
    return await _fire(this, "pre_compact", here, facts, str(this.talk.context.begun))


async def after_compaction(this: Run, done: Compaction, here: Place | None) -> Fired:
    """Fire the hooks after a compaction; what they add follows the conversation as it is then."""
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
    """Say that a conversation is over: agents in its background end, then the hooks of its end are fired.

    Hooks in the background are waited for, each within its time; an event loop that ends would cancel them.

    Args:
        conversation: it must not be in a run. A later run begins it again, with the hooks of the beginning.
        world: the world in force.
        options: those of its runs.
        cancel: stop agents in the background; else they are waited for.

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
    _, told = await _fire(this, "session_end", tracing.place(), {"turns": turn})
    await world.settled()
    return told


async def _fire(
    this: Run, event: HookEvent, here: Place | None, facts: Json, name: str | None = None
) -> Fired:
    """Fire the hooks of an event in the turn that is under way; `name` tells it from others of its kind there."""
    about = {"tool": this.options.agent} if event in ("sub_agent_start", "sub_agent_stop") else {}
    return await this.hooks.fire(occasion(event, this.state.turn, name, facts, **about), here)
