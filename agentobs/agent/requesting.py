"""Requesting: asking the model until there is a whole answer. The loop owns all retries; the SDK's are off."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from agentobs.agent import recovery, telling
from agentobs.agent.dispatch import Dispatcher
from agentobs.agent.events import Event, Message, RequestStart, Retry, Tombstone, Transition
from agentobs.agent.holding import within_budget
from agentobs.agent.interrupt import Interrupted, Stopped, Watch
from agentobs.agent.model import Asking, ToolAsked, attempt
from agentobs.agent.running import Clock, Run
from agentobs.agent.settling import settle
from agentobs.agent.state import own_copy, request
from agentobs.agent.tools import Tool
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place, QuerySource


@dataclass(slots=True)
class Request:
    """One request on its way to its answer, however often it is tried."""

    turn: int
    point: str
    """What the points begin with at which the run may be stopped: the turn, or more."""
    arguments: dict[str, Any]
    """Those of the SDK's `messages.create`."""
    inside: Place | None
    """Inside its span."""
    source: QuerySource
    """Who asks."""
    transition: Transition
    """Why it is asked."""
    is_background: bool = False
    """Whether nobody waits for it, so that it fails fast."""
    message: Json = field(default_factory=dict)
    """The answer, as far as it has come."""


async def ask(
    this: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Ask until there is a whole answer; the last event is its `Message`. Safe calls begin while it comes.

    Raises:
        recovery.PROVIDER_ERRORS: the last failure, when there is no use in asking again.
        Stopped: the run was aborted.
    """
    settled = await settle(this, tools, here)
    for event in settled.events:
        yield event
    state = this.state
    with telling.span("llm_request", this.asking(here), this.options.model) as inside:
        asked = Request(
            turn=state.turn,
            point=str(state.turn),
            arguments=request(state, settled.options, settled.tools, this.owed),
            inside=inside,
            source=this.source,
            transition=state.transition,
        )
        async with aclosing(answer(this, asked, dispatcher, here)) as events:
            async for event in events:
                yield event
        if this.subtype != "success":
            return
    this.answers.append(asked.message)
    this.thought(asked.message)
    this.counted(asked.message, "exact")
    this.turn_took(asked.message)
    yield Message(state.turn, own_copy(asked.message))


async def answer(
    this: Run, asked: Request, dispatcher: Dispatcher | None, here: Place | None = None
) -> AsyncGenerator[Event, None]:
    """Try until there is a whole answer; it is `asked.message` then. The caller counts what it used.

    With a dispatcher safe calls begin while it comes. Where attempts have used up the budget, the run ends
    without an answer.

    Raises:
        recovery.PROVIDER_ERRORS: the last failure, when there is no use in asking again.
        Stopped: the run was aborted.
    """
    for number in itertools.count(1):
        _go_on(this, f"{asked.point}:asking:{number}")
        model = str(asked.arguments["model"])
        yield RequestStart(asked.turn, number, asked.transition, asked.source, model)
        _go_on(this, f"{asked.point}:unsent:{number}")
        clock = Clock(this.world)
        try:
            async with aclosing(_attempt(this, asked, number, clock, dispatcher)) as steps:
                async for step in steps:
                    yield step
            break
        except recovery.PROVIDER_ERRORS as error:
            this.gave_up(asked.message, clock.stop(), error)
            void = await dispatcher.discard() if dispatcher is not None else ()
            retry = _retry(this, asked, number, error)
            if retry is None:
                raise
        except Stopped as stopped:
            this.gave_up(asked.message, clock.stop(), stopped)
            raise
        if asked.message:
            telling.event(this.world, asked.inside, "tombstone", None, {"tool_calls": len(void)})
            yield Tombstone(asked.turn, number, void)
        asked.message = {}
        numbers = {"attempt": number, "wait_ns": int(retry.wait_s * 1e9)}
        telling.event(this.world, asked.inside, "retry", retry.error, numbers)
        yield retry
        await _wait(this, retry.wait_s, f"{asked.point}:waiting:{number}")
        if not asked.is_background:
            async for reached in within_budget(this, here, f"{asked.point}:retry {number}"):
                yield reached
            if this.subtype != "success":
                return
    took_ns = clock.stop()
    this.provider_ns += took_ns
    this.provider_ok_ns += took_ns


async def _attempt(
    this: Run, asked: Request, number: int, clock: Clock, dispatcher: Dispatcher | None
) -> AsyncGenerator[Event, None]:
    """Ask once; the clock stands while the consumer has an event."""
    point = f"{asked.point}:streaming:{number}"
    asking = Asking(this.client, this.world.abort, point, this.options.answer_seconds)
    async with aclosing(attempt(asking, asked.arguments, asked.inside, asked.message)) as steps:
        async for step in steps:
            clock.stop()
            if not isinstance(step, ToolAsked):
                yield step
            elif dispatcher is not None:
                async with aclosing(dispatcher.early(step.question)) as beginning:
                    async for begun in beginning:
                        yield begun
            clock.go_on()


async def _wait(this: Run, seconds: float, point: str) -> None:
    """Wait before the next attempt.

    Raises:
        Stopped: the run was aborted meanwhile.
    """
    abort = this.world.abort
    with contextlib.suppress(Interrupted):
        async with Watch(abort, None) as watch:
            await watch.guard(this.world.sleep(seconds))
    _go_on(this, point)


def _go_on(this: Run, point: str) -> None:
    """Do nothing, or raise `Stopped` where the run is to stop at this point."""
    if this.world.abort.reached(point, 0):
        this.broken.append({})
        raise Stopped(point, 0)


def _retry(this: Run, asked: Request, number: int, error: Exception) -> Retry | None:
    wait_s = recovery.wait_s(
        error,
        number,
        max_retries=this.options.max_retries,
        is_background=asked.is_background,
        chance=this.world.random(),
        now_ns=this.world.now(),
    )
    if wait_s is None:
        return None
    return Retry(asked.turn, number, wait_s, recovery.name_of(error), recovery.status_of(error))
