"""Run all hooks that match an event in parallel, and combine their answers.

The world decides whether a hook is executed or its recorded answer is returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agentobs.agent import telemetry
from agentobs.agent.events import HookRan
from agentobs.agent.hooks.conditions import matching
from agentobs.agent.hooks.declarations import Hook, HookEvent, Occasion
from agentobs.agent.hooks.hook_verdict import HookAnswer, Verdict, parse, verdict
from agentobs.errors import ReplayEnd
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place
from agentobs.world import World

UNRECORDED: Mapping[HookEvent, tuple[str, ...]] = {"pre_request": ("messages",)}
"""The parts of payloads that are not recorded with the question of a hook, because the request contains them."""


async def fire(
    world: World,
    hooks: Sequence[Hook],
    occasion: Occasion,
    place: Place | None,
    done: Collection[str] = (),
) -> tuple[Verdict, tuple[HookRan, ...], frozenset[str]]:
    """Run the matching hooks. Return the verdict, one event per hook, and the `once` hooks that have run so far.

    If a hook fails, the other hooks are not affected, and no exception is raised. If the run is aborted, running hooks
    are cancelled.

    Args:
        world: runs the hooks.
        hooks: the table.
        occasion: the event.
        place: the position of the event in the trace.
        done: the names of the `once` hooks that have already run.

    Raises:
        ReplayEnd: a replay differs from its recording.
    """
    hooks_to_run = matching(hooks, occasion, done)
    if not hooks_to_run:
        return Verdict(), (), frozenset(done)
    tasks = [asyncio.create_task(_run_hook(world, hook, occasion, place)) for hook in hooks_to_run]
    try:
        await asyncio.wait(tasks)
    finally:
        unfinished = [task for task in tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
    runs = [task.result() for task in tasks]
    combined = verdict([each.answer for each in runs])
    for index, each in enumerate(runs):
        _emit(world, place, occasion, each, is_overridden=index in combined.overridden)
    events = tuple(
        _hook_ran_event(occasion, each, is_overridden=index in combined.overridden)
        for index, each in enumerate(runs)
    )
    return combined, events, frozenset((*done, *(hook.name for hook in hooks_to_run if hook.once)))


def question(hook: Hook, occasion: Occasion) -> Json:
    """Return the question for the world, which is the payload without the values that differ in a replay."""
    payload = {
        "event": occasion.event,
        "hook": hook.name,
        "turn": occasion.turn,
        **occasion.facts,
    }
    return {**payload, "background": True} if hook.background else payload


@dataclass(frozen=True, slots=True)
class _HookRun:
    hook: Hook
    answer: HookAnswer
    duration_ns: int
    inside: Place | None


async def _run_hook(world: World, hook: Hook, occasion: Occasion, place: Place | None) -> _HookRun:
    started_ns, key = world.now(), f"{occasion.key}:{hook.name}"
    with telemetry.span("hook", place, hook.name) as inside:
        try:
            payload = question(hook, occasion)
            given = await telemetry.ask(
                world, inside, "hook", key, payload, unrecorded=UNRECORDED.get(occasion.event, ())
            )
            answer = parse(given, occasion.event, occasion.facts.get("messages"))
        except ReplayEnd:
            raise
        except Exception as error:
            text = f"the call failed with {type(error).__name__}"
            answer = HookAnswer("non_blocking_error", text)
    if hook.background and answer.outcome == "success":
        answer = HookAnswer(usage=answer.usage, reason=answer.reason)
    return _HookRun(hook, answer, max(world.now() - started_ns, 0), inside)


def _emit(
    world: World, place: Place | None, occasion: Occasion, run: _HookRun, *, is_overridden: bool
) -> None:
    numbers = {
        "duration_ns": run.duration_ns,
        "blocking": run.answer.outcome == "blocking",
        "background": run.hook.background,
        "rewrites": any(
            value is not None
            for value in (run.answer.input, run.answer.output, run.answer.messages)
        ),
        "overridden": is_overridden,
        "requests": len(run.answer.usage),
    }
    tool_use_id = occasion.facts.get("tool_use_id")
    labels = {
        "event": occasion.event,
        "hook": run.hook.name,
        "tool_use_id": tool_use_id if isinstance(tool_use_id, str) else None,
    }
    telemetry.event(world, run.inside or place, "hook", run.answer.outcome, numbers, labels)


def _hook_ran_event(occasion: Occasion, run: _HookRun, *, is_overridden: bool) -> HookRan:
    reason, tool_use_id = run.answer.reason, occasion.facts.get("tool_use_id")
    if is_overridden:
        reason = f"{reason} (Another hook's change replaced its own.)".strip()
    return HookRan(
        turn=occasion.turn,
        event=occasion.event,
        hook=run.hook.name,
        outcome=run.answer.outcome,
        tool_use_id=tool_use_id if isinstance(tool_use_id, str) else None,
        reason=reason,
        duration_ns=run.duration_ns,
    )
