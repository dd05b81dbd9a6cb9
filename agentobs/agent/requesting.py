"""Requesting: asking the model until there is a whole answer. The loop owns all retries; the SDK's are off."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from agentobs.agent import recovery, telling
from agentobs.agent.dispatch import Dispatcher
from agentobs.agent.events import Event, Message, RequestStart, Retry, Tombstone
from agentobs.agent.holding import within_budget
from agentobs.agent.interrupt import Interrupted, Stopped, Watch
from agentobs.agent.model import Asking, ToolAsked, attempt
from agentobs.agent.running import Clock, Run
from agentobs.agent.state import own_copy, request
from agentobs.agent.tools import Tool
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place


async def ask(
    this: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Ask until there is a whole answer; the last event is its `Message`. Safe calls begin while it comes.

    Raises:
        recovery.PROVIDER_ERRORS: the last failure, when there is no use in asking again.
        Stopped: the run was aborted.
    """
    state = this.state
    arguments = request(state, this.options, tools, this.owed)
    message: Json = {}
    with telling.span("llm_request", this.asking(here), this.options.model) as inside:
        for number in itertools.count(1):
            _go_on(this, f"{state.turn}:asking:{number}")
            yield RequestStart(
                state.turn, number, state.transition, this.source, this.options.model
            )
            _go_on(this, f"{state.turn}:unsent:{number}")
            point, clock = f"{state.turn}:streaming:{number}", Clock(this.world)
            asking = Asking(this.client, this.world.abort, point, this.options.answer_seconds)
            try:
                async with aclosing(attempt(asking, arguments, inside, message)) as steps:
                    async for step in steps:
                        clock.stop()
                        if not isinstance(step, ToolAsked):
                            yield step
                            clock.go_on()
                            continue
                        async with aclosing(dispatcher.early(step.question)) as beginning:
                            async for begun in beginning:
                                yield begun
                        clock.go_on()
                break
            except recovery.PROVIDER_ERRORS as error:
                this.gave_up(message, clock.stop(), error)
                void = await dispatcher.discard()
                retry = _retry(this, state.turn, number, error)
                if retry is None:
                    raise
            except Stopped as stopped:
                this.gave_up(message, clock.stop(), stopped)
                raise
            if message:
                telling.event(this.world, inside, "tombstone", None, {"tool_calls": len(void)})
                yield Tombstone(state.turn, number, void)
            message = {}
            numbers = {"attempt": number, "wait_ns": int(retry.wait_s * 1e9)}
            telling.event(this.world, inside, "retry", retry.error, numbers)
            yield retry
            await _wait(this, retry.wait_s, f"{state.turn}:waiting:{number}")
            async for reached in within_budget(this, here, f"{state.turn}:retry {number}"):
                yield reached
            if this.subtype != "success":
                return
        took_ns = clock.stop()
        this.provider_ns += took_ns
        this.provider_ok_ns += took_ns
    this.answers.append(message)
    this.counted(message, "exact")
    this.turn_took(message)
    yield Message(state.turn, own_copy(message))


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


def _retry(this: Run, turn: int, number: int, error: Exception) -> Retry | None:
    wait_s = recovery.wait_s(
        error,
        number,
        max_retries=this.options.max_retries,
        chance=this.world.random(),
        now_ns=this.world.now(),
    )
    if wait_s is None:
        return None
    return Retry(turn, number, wait_s, recovery.name_of(error), recovery.status_of(error))
