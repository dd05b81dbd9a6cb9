"""One LLM request, repeated until there is a complete response or retrying is pointless.

`retry` decides on the reaction to a failure; this module carries it out: wait, refresh credentials,
change the model. The loop owns all retries; the SDK's are off.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
from anthropic import APIStatusError

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Clock, Run
from agentobs.agent.events import (
    Degraded,
    Event,
    Fallback,
    Heartbeat,
    RequestStart,
    Retry,
    Tombstone,
    Transition,
)
from agentobs.agent.interruption import Interrupted, Stopped, Watch
from agentobs.agent.model import error_classes, output_limits
from agentobs.agent.model.retry import (
    COOL_DOWN_S,
    FOREGROUND,
    PIECE_S,
    Failure,
    Next,
    Policy,
    Tried,
    after,
    failure_of,
    is_dated,
    pieces,
)
from agentobs.agent.model.thinking import without_thinking
from agentobs.agent.requests.attempt import AttemptSetup, ToolCallComplete, attempt
from agentobs.agent.requests.budget_check import within_budget
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource


@dataclass(slots=True)
class Request:
    """One LLM request and its progress, over all attempts."""

    turn: int
    point: str
    """Prefix of the points at which the run may be stopped: the turn, possibly more."""
    arguments: dict[str, Any]
    """Arguments of the SDK's `messages.create`."""
    inside: Place | None
    """The place inside its span."""
    source: QuerySource
    """The source of the request."""
    transition: Transition
    """Why it is sent."""
    remake: Callable[[], dict[str, Any]] | None = None
    """Builds the arguments again from the current run, for another model; None if no fallback is wanted."""
    number: int = 0
    """Number of attempts so far, including earlier ones of the same turn."""
    had: int = 0
    """The limit at which its response was cut; only a higher one helps."""
    tried: Tried = field(default_factory=Tried)
    message: Json = field(default_factory=dict)
    """The response, as far as it has arrived."""

    @property
    def is_background(self) -> bool:
        """Whether it is a background request."""
        return self.source not in FOREGROUND


async def answer(
    this: Run, request: Request, dispatcher: Dispatcher | None, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send attempts until there is a complete response in `asked.message`. The caller counts its
    usage.

    With a dispatcher, concurrency-safe calls start while the response arrives. If attempts have used up the budget, the
    run ends without a response.

    Raises:
    error_classes.PROVIDER_ERRORS: the last failure, if retrying is pointless.
        Stopped: the run was aborted.
    """
    async with aclosing(_unless_down(this, request)) as waiting:
        async for degraded in waiting:
            yield degraded
    while True:
        request.number += 1
        go_on(this, f"{request.point}:asking:{request.number}")
        model = str(output_limits.field_of(request.arguments, "model"))
        yield RequestStart(request.turn, request.number, request.transition, request.source, model)
        go_on(this, f"{request.point}:unsent:{request.number}")
        clock = Clock(this.world)
        try:
            async with aclosing(_attempt(this, request, clock, dispatcher)) as steps:
                async for step in steps:
                    yield step
            break
        except error_classes.PROVIDER_ERRORS as error:
            this.gave_up(request.message, clock.stop(), error)
            void = await dispatcher.discard() if dispatcher is not None else ()
            failed, following = error, await _following(this, request, error)
            if following is None:
                raise
        except Stopped as stopped:
            this.gave_up(request.message, clock.stop(), stopped)
            raise
        if request.message:
            yield void_answer(this, request, void)
        request.message = {}  # the previous one is kept for its usage
        async with aclosing(_again(this, request, failed, following)) as events:
            async for event in events:
                yield event
        if not request.is_background:
            async for reached in within_budget(
                this, here, f"{request.point}:retry {request.number}"
            ):
                yield reached
            if this.subtype != "success":
                return
    this.talk.breaker = this.talk.breaker.succeeded()
    took_ns = clock.stop()
    this.provider_ns += took_ns
    this.provider_ok_ns += took_ns


async def _attempt(
    this: Run, request: Request, clock: Clock, dispatcher: Dispatcher | None
) -> AsyncGenerator[Event, None]:
    """Send one attempt; the clock is stopped while the consumer handles an event."""
    point = f"{request.point}:streaming:{request.number}"
    setup = AttemptSetup(this.client, this.world.abort, point, this.options.answer_seconds)
    async with aclosing(
        attempt(setup, request.arguments, request.inside, request.message)
    ) as steps:
        async for step in steps:
            clock.stop()
            if not isinstance(step, ToolCallComplete):
                yield step
            elif dispatcher is not None:
                async with aclosing(dispatcher.early(step.question)) as beginning:
                    async for begun in beginning:
                        yield begun
            clock.go_on()


def void_answer(this: Run, request: Request, void: tuple[str, ...]) -> Tombstone:
    """Emit that a partial response is void, together with the calls that had started."""
    telemetry.event(this.world, request.inside, "tombstone", None, {"tool_calls": len(void)})
    return Tombstone(request.turn, request.number, void)


async def _following(this: Run, request: Request, error: Exception) -> Next | None:
    """Return the next attempt after a failure, or None if the request is given up.

    Raises:
        Stopped: the run was aborted while credentials were refreshed.
    """
    now_ns, options = this.world.now(), this.options
    failure = await _failure(this, request, error, now_ns)
    policy = Policy(
        max_retries=options.max_retries,
        is_background=request.is_background,
        is_unattended=options.unattended,
        has_fallback=options.fallback_model is not None and request.remake is not None,
        may_unstream=output_limits.may_unstream(request.arguments),
    )
    following = after(failure, request.tried, policy, this.world.random())
    if (
        following is not None
        and following.step == "refresh"
        and not await _refreshed(this, request)
    ):
        following = None
    if following is not None:
        request.tried = following.tried
        if following.step == "lower" and failure.room is not None:
            timeout = this.client.timeout
            request.arguments = output_limits.with_max_tokens(
                request.arguments, failure.room, timeout
            )
    elif not request.is_background:
        this.talk.breaker = this.talk.breaker.failed(failure.kind, now_ns)
    return following


async def _failure(this: Run, request: Request, error: Exception, now_ns: int) -> Failure:
    """Return the failure for an error; a wait until a date comes from the world, because it depends on the clock."""
    has_content = bool(request.message.get("content"))
    failure = failure_of(error, has_content=has_content, now_ns=now_ns)
    if isinstance(error, APIStatusError) and is_dated(error.response.headers):
        key = f"{request.point}:retry-after:{request.number}"
        left = await telemetry.ask(this.world, request.inside, "elapsed", key, failure.asked_s)
        failure = replace(failure, asked_s=None if failure.asked_s is None else left or 0.0)
    if failure.kind == "beyond_model" and failure.room is not None:
        model = str(output_limits.field_of(request.arguments, "model"))
        this.talk.most_tokens[model] = failure.room
    return replace(failure, room=output_limits.of_use(failure, request.arguments, request.had))


async def _refreshed(this: Run, request: Request) -> bool:
    """Request new credentials and use them; return whether there are any."""
    key = f"{request.point}:{request.number}"
    made = await telemetry.ask(this.world, request.inside, "refresh", key)
    go_on(this, f"{request.point}:waiting:{request.number}")
    if made is not True:
        return False
    this.client = this.world.client.with_options(max_retries=0)  # which uses the current key
    return True


async def _again(
    this: Run, request: Request, error: Exception, following: Next
) -> AsyncGenerator[Event, None]:
    """Make the change, emit the failure, and wait."""
    wait_s = following.wait_s + following.jitter_s
    match following.step:
        case "lower":
            yield _degraded(this, request, "answer_length", error_classes.classify(error))
        case "unstream":
            request.arguments = output_limits.unstreamed(request.arguments, this.client.timeout)
            yield _degraded(this, request, "streaming", "broken_streams")
        case "fall_back":
            yield _fall_back(this, request)
        case "refresh" | "shorten" | None:
            pass
    name = error_classes.name_of(error)
    numbers = {"attempt": request.number, "wait_ns": int(wait_s * 1e9)}
    telemetry.event(this.world, request.inside, "retry", name, numbers)
    yield Retry(request.turn, request.number, wait_s, name, error_classes.status_of(error))
    async for beat in _wait(this, request, following, f"{request.point}:waiting:{request.number}"):
        yield beat


def _degraded(this: Run, request: Request, capability: str, reason: str) -> Degraded:
    telemetry.event(this.world, request.inside, "degraded", f"{capability}:{reason}", {})
    return Degraded(capability, reason)


def _fall_back(this: Run, request: Request) -> Fallback:
    """Use the fallback model for the rest of the run. It cannot use this model's thinking, which is signed."""
    before, after_it = this.options.model, this.options.fallback_model
    assert after_it is not None
    assert request.remake is not None
    this.options = replace(this.options, model=after_it, fallback_model=None)
    this.state = replace(
        this.state, messages=without_thinking(this.state.messages), transition="model_fallback"
    )
    this.talk.fell_back_to = after_it
    request.arguments = output_limits.with_field(request.remake(), "model", after_it)
    request.transition = "model_fallback"
    telemetry.event(this.world, request.inside, "fallback", after_it, {"attempt": request.number})
    return Fallback(request.turn, before, after_it)


async def _wait(
    this: Run, request: Request, following: Next, point: str
) -> AsyncGenerator[Heartbeat, None]:
    """Wait before the next attempt; unattended, in parts with heartbeats.

    Raises:
        Stopped: the run was aborted meanwhile.
    """
    parts = list(pieces(following, is_unattended=this.options.unattended))
    inside, seconds_max = request.inside, sum(parts)
    span = telemetry.span("retry_wait", inside, None, expected_s=seconds_max)
    with span if seconds_max > 0 else contextlib.nullcontext():
        for count, seconds in enumerate(parts):
            if seconds > 0:
                with contextlib.suppress(Interrupted):
                    async with Watch(this.world.abort, None) as watch:
                        await watch.guard(this.world.sleep(seconds))
            go_on(this, point, count)
            if count + 1 < len(parts):
                waited_s = PIECE_S * (count + 1)
                numbers = {"attempt": request.number, "waited_ns": int(waited_s * 1e9)}
                telemetry.event(this.world, inside, "heartbeat", None, numbers)
                yield Heartbeat(request.turn, request.number, waited_s, following.wait_s)


def go_on(this: Run, point: str, count: int = 0) -> None:
    """Raise `Stopped` if the run is to stop at this point."""
    if this.world.abort.reached(point, count):
        this.broken.append({})
        raise Stopped(point, count)


async def _unless_down(this: Run, asked: Request) -> AsyncGenerator[Degraded | Heartbeat, None]:
    """Raise if the circuit breaker is open; an unattended run waits instead.

    Raises:
    error_classes.CircuitOpenError: no request is sent.
        Stopped: the run was aborted.
    """
    breaker = this.talk.breaker
    if not breaker.is_open:
        return
    point = f"{asked.point}:circuit:{breaker.refused}"
    waits = this.options.unattended and not asked.is_background
    left_s = breaker.left_s(this.world.now())
    elapsed = left_s if waits else left_s == 0
    left = await telemetry.ask(this.world, asked.inside, "elapsed", point, elapsed)
    go_on(this, point)
    if bool(left) != waits:
        return
    this.talk.breaker = breaker.failed("circuit_open", this.world.now())
    yield _degraded(this, asked, "provider", "circuit_open")
    if waits:
        async for beat in _wait(this, asked, Next(asked.tried, left), f"{point}:waiting"):
            yield beat
        return
    text = f"{breaker.failures} requests in a row failed; no request is sent for {COOL_DOWN_S:g} seconds."
    request = httpx2.Request("POST", str(this.client.base_url))
    raise error_classes.CircuitOpenError(text, request, body=None)
