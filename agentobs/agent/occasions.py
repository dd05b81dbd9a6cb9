"""Occasions: the hooks of a run as a whole, from its first prompt to the moment before it would end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agentobs.agent import recovery, telling
from agentobs.agent.events import HookRan
from agentobs.agent.hooking import Fired, occasion
from agentobs.agent.hooks import HookEvent
from agentobs.agent.running import Run
from agentobs.agent.state import State, kept_from_ending, with_context
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place
from agentobs.records.messages import text_of

STOP_BLOCKS_MAX = 25
"""How often hooks may keep an interaction from ending; a hook that always does would never let it go. Our choice."""

ON = "A hook wants you to go on before you end."
"""What the model is told where a hook keeps it from ending and gives no reason."""


async def at_the_beginning(this: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Fire the hooks of a conversation's or sub-agent's beginning, and of the prompt; they may refuse it."""
    if not this.hooks.hooks:
        return
    here = telling.in_turn(this.world, here, this.state.turn)
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
            this.ended("error_during_execution", "hook_stopped")
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
        this.ended("error_during_execution", "stop_hook_prevented")
        return
    this.following = kept_from_ending(state, verdict.reason or ON)


async def after_failure(this: Run, here: Place | None) -> AsyncGenerator[HookRan, None]:
    """Fire the hooks after an error of the provider has ended a run; they cannot change that."""
    here = here if here is None else telling.in_turn(this.world, here, this.state.turn)
    facts = {
        "reason": this.reason,
        "error": recovery.name_of(this.error) if this.error else None,
        "agent": this.options.agent,
    }
    _, told = await _fire(this, "stop_failure", here, facts)
    for ran in told:
        yield ran


async def _fire(this: Run, event: HookEvent, here: Place | None, facts: Json) -> Fired:
    return await this.hooks.fire(occasion(event, this.state.turn, None, facts), here)
