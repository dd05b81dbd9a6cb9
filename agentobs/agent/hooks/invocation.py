"""Run all hooks that match an event in parallel, and combine their answers.

The world decides whether a hook is executed or its recorded answer is returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentobs.agent import telemetry
from agentobs.agent.events import HookRan
from agentobs.agent.hooks.conditions import matching
from agentobs.agent.hooks.declarations import Hook, Occasion
from agentobs.agent.hooks.hook_verdict import HookAnswer, Verdict, parse, verdict
from agentobs.errors import ReplaySays
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World


async def fire(
    world: World,
    hooks: Sequence[Hook],
    occasion: Occasion,
    here: Place | None,
    done: Collection[str] = (),
) -> tuple[Verdict, tuple[HookRan, ...], frozenset[str]]:
    """Run the matching hooks; return the verdict, one record per hook, and the `once` hooks done so
    far.

    A failing hook neither affects the others nor raises. If the run is aborted, running hooks are
    cancelled.

    Args:
        world: runs the hooks.
        hooks: the table.
        occasion: the event.
        here: the position of the event in the trace.
        done: the names of the `once` hooks that have already run.

    Raises:
        ReplaySays: a replay differs from its recording.
    """
    fired = matching(hooks, occasion, done)
    if not fired:
        return Verdict(), (), frozenset(done)
    tasks = [asyncio.create_task(_run_hook(world, hook, occasion, here)) for hook in fired]
    try:
        await asyncio.wait(tasks)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
    ran = [task.result() for task in tasks]
    found = verdict([each.answer for each in ran])
    for at, each in enumerate(ran):
        _emit(world, here, occasion, each, is_overridden=at in found.overridden)
    events = tuple(
        _event(occasion, each, is_overridden=at in found.overridden) for at, each in enumerate(ran)
    )
    return found, events, frozenset((*done, *(hook.name for hook in fired if hook.once)))


def question(hook: Hook, occasion: Occasion) -> Json:
    """Return the question for the world: the payload without the values that differ in a replay."""
    payload = {
        "event": occasion.event,
        "hook": hook.name,
        "turn": occasion.turn,
        **occasion.facts,
    }
    return {**payload, "background": True} if hook.background else payload


@dataclass(frozen=True, slots=True)
class _Ran:
    hook: Hook
    answer: HookAnswer
    duration_ns: int
    inside: Place | None


async def _run_hook(world: World, hook: Hook, occasion: Occasion, here: Place | None) -> _Ran:
    started_ns, key = world.now(), f"{occasion.key}:{hook.name}"
    with telemetry.span("hook", here, hook.name) as inside:
        try:
            payload = question(hook, occasion)
            answer = parse(await telemetry.ask(world, inside, "hook", key, payload), occasion.event)
        except ReplaySays:
            raise
        except Exception as error:
            text = f"the call failed with {type(error).__name__}"
            answer = HookAnswer("non_blocking_error", text)
    if hook.background and answer.outcome == "success":
        answer = HookAnswer(usage=answer.usage, reason=answer.reason)
    return _Ran(hook, answer, max(world.now() - started_ns, 0), inside)


def _emit(
    world: World, here: Place | None, occasion: Occasion, ran: _Ran, *, is_overridden: bool
) -> None:
    numbers = {
        "duration_ns": ran.duration_ns,
        "blocking": ran.answer.outcome == "blocking",
        "background": ran.hook.background,
        "rewrites": ran.answer.input is not None or ran.answer.output is not None,
        "overridden": is_overridden,
        "requests": len(ran.answer.usage),
    }
    found = occasion.facts.get("tool_use_id")
    labels = {
        "event": occasion.event,
        "hook": ran.hook.name,
        "tool_use_id": found if isinstance(found, str) else None,
    }
    telemetry.event(world, ran.inside or here, "hook", ran.answer.outcome, numbers, labels)


def _event(occasion: Occasion, ran: _Ran, *, is_overridden: bool) -> HookRan:
    reason, found = ran.answer.reason, occasion.facts.get("tool_use_id")
    if is_overridden:
        reason = f"{reason} (Another hook's change took the place of its own.)".strip()
    return HookRan(
        turn=occasion.turn,
        event=occasion.event,
        hook=ran.hook.name,
        outcome=ran.answer.outcome,
        tool_use_id=found if isinstance(found, str) else None,
        reason=reason,
        duration_ns=ran.duration_ns,
    )
