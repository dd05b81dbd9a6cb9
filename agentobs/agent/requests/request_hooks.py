"""Run the hooks before an LLM request, which may change the messages that are sent.

Only the request changes, never the stored conversation. Therefore the difference is recorded, so that a resumed session
can rebuild the stored conversation from its last request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.conversation_hooks import turn_occasion
from agentobs.agent.events import HookRan
from agentobs.agent.state import with_context
from agentobs.records.canonical_json import Json, size
from agentobs.records.exchanges import Place

Messages = tuple[Json, ...]


async def run_pre_request_hooks(
    run: Run, here: Place | None
) -> tuple[Messages | None, tuple[HookRan, ...]]:
    """Run the hooks before the LLM request of a turn.

    Return the messages to send, or None if they are the stored messages, and one event per hook.
    """
    if not any(hook.event == "pre_request" for hook in run.hooks.hooks):
        return None, ()
    state, number = run.progress.state, run.progress.depth
    facts = {"messages": list(state.messages), "model": run.inputs.options.model}
    name = str(number) if number else None
    verdict, ran = await run.hooks.fire(turn_occasion("pre_request", state.turn, name, facts), here)
    if not ran:
        return None, ()
    sent = state.messages if verdict.messages is None else tuple(verdict.messages)
    sent = with_context(replace(state, messages=sent), verdict.context).messages
    difference = stored_difference(state.messages, sent)
    world, key = run.inputs.world, f"{state.turn}:{number}"
    await telemetry.ask(world, here, "stored_messages", key, difference)
    if "messages" not in difference:
        return None, ran
    numbers = {"before_bytes": size(list(state.messages)), "after_bytes": size(list(sent))}
    telemetry.event(world, here, "rewritten", "messages", numbers, {"by": "hook"})
    return sent, ran


def stored_difference(stored: Sequence[Json], sent: Sequence[Json]) -> Json:
    """Return how to get the stored messages from the sent ones; without `messages` if they are equal.

    `start` and `end` are the numbers of equal messages at the start and at the end, and `messages` are the stored
    messages between them.
    """
    shorter, start, end = min(len(stored), len(sent)), 0, 0
    while start < shorter and stored[start] == sent[start]:
        start += 1
    if start == len(stored) == len(sent):
        return {"start": start, "end": 0}
    while end < shorter - start and stored[-1 - end] == sent[-1 - end]:
        end += 1
    return {"start": start, "end": end, "messages": list(stored[start : len(stored) - end])}
