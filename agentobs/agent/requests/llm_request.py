"""One LLM request, repeated until there is a complete response or retrying is pointless.

The module `retry` decides on the reaction to a failure; this module carries it out: wait, refresh the
credentials, or change the model. The loop handles all retries; the SDK's own retries are disabled.
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
from agentobs.agent.agent_run import ResponseTimer, Run
from agentobs.agent.events import (
    Degraded,
    Event,
    Fallback,
    Heartbeat,
    RequestStart,
    Retry,
    SpeedChange,
    Tombstone,
    Transition,
)
from agentobs.agent.interruption import Interrupted, Stopped, Watch
from agentobs.agent.model import error_classes, output_limits
from agentobs.agent.model.retry import (
    COOL_DOWN_S,
    FOREGROUND,
    WAIT_PART_S,
    Failure,
    NextAttempt,
    RetryHistory,
    RetryPolicy,
    depends_on_clock,
    failure_of,
    next_attempt,
    wait_parts,
)
from agentobs.agent.model.thinking import without_thinking
from agentobs.agent.requests.attempt import AttemptSetup, ToolCallComplete, attempt
from agentobs.agent.requests.budget_check import enforce_budget
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource


@dataclass(slots=True)
class LlmRequest:
    """One LLM request and its progress over all attempts."""

    turn: int
    point: str
    """Prefix of the points at which the run may be stopped: the turn, possibly followed by a name."""
    arguments: dict[str, Any]
    """Arguments of the SDK's `messages.create`."""
    place: Place | None
    """The place inside the span of the request; None outside a session."""
    source: QuerySource
    """The source of the request."""
    transition: Transition
    """Why the request is sent."""
    rebuild_arguments: Callable[[], dict[str, Any]] | None = None
    """Builds the arguments again for another model; None if there must be no fallback."""
    number: int = 0
    """Number of attempts so far, including the attempts of earlier requests of the same turn."""
    exceeded_limit: int = 0
    """The token limit at which an earlier response of the turn was cut, so that only a higher limit helps; 0 if none
    was cut.
    """
    suspended_ns: int = 0
    """How long fast mode was suspended after the last attempt, in nanoseconds; 0 if it was not."""
    history: RetryHistory = field(default_factory=RetryHistory)
    """The retries so far."""
    message: Json = field(default_factory=dict)
    """The part of the response that has arrived."""

    @property
    def is_background(self) -> bool:
        """Whether it is a background request."""
        return self.source not in FOREGROUND


async def send(
    run: Run, request: LlmRequest, dispatcher: Dispatcher | None, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send attempts until `request.message` is a complete response.

    The caller counts the usage of the response. With a dispatcher, concurrency-safe calls start
    while the response arrives. If failed attempts have used up the budget, the run ends without a
    response.

    Raises:
        error_classes.PROVIDER_ERRORS: the last failure, if the request is given up.
        Stopped: the run was aborted.
    """
    async with aclosing(_check_breaker(run, request)) as breaker_events:
        async for breaker_event in breaker_events:
            yield breaker_event
    while True:
        request.number += 1
        check_abort(run, f"{request.point}:asking:{request.number}")
        model = str(output_limits.field_of(request.arguments, "model"))
        yield RequestStart(request.turn, request.number, request.transition, request.source, model)
        check_abort(run, f"{request.point}:unsent:{request.number}")
        timer = ResponseTimer(run.inputs.world)
        try:
            async with aclosing(_attempt(run, request, timer, dispatcher)) as steps:
                async for step in steps:
                    yield step
            break
        except error_classes.PROVIDER_ERRORS as error:
            run.count_failed_attempt(request.message, timer.stop(), error)
            if error_classes.has_lost_connection(error):
                await run.inputs.world.close_idle_connections()
            void = await dispatcher.discard() if dispatcher is not None else ()
            failed, following = error, await _next_attempt(run, request, error)
            if following is None:
                raise
        except Stopped as stopped:
            run.count_failed_attempt(request.message, timer.stop(), stopped)
            raise
        if request.message:
            yield void_response(run, request, void)
        request.message = {}  # a new object, because the run keeps the old object to count its usage
        async with aclosing(_prepare_retry(run, request, failed, following)) as events:
            async for event in events:
                yield event
        if not request.is_background:
            async for reached in enforce_budget(
                run, here, f"{request.point}:retry {request.number}"
            ):
                yield reached
            if run.progress.subtype != "success":
                return
    run.progress.conversation.breaker = run.progress.conversation.breaker.succeeded()
    took_ns = timer.stop()
    run.totals.provider_ns += took_ns
    run.totals.provider_ok_ns += took_ns


async def _attempt(
    run: Run, request: LlmRequest, timer: ResponseTimer, dispatcher: Dispatcher | None
) -> AsyncGenerator[Event, None]:
    """Send one attempt; the timer is stopped while the consumer handles an event."""
    point = f"{request.point}:streaming:{request.number}"
    setup = AttemptSetup(
        run.progress.client, run.inputs.world.abort, point, run.inputs.options.answer_seconds
    )
    async with aclosing(attempt(setup, request.arguments, request.place, request.message)) as steps:
        async for step in steps:
            timer.stop()
            if not isinstance(step, ToolCallComplete):
                yield step
            elif dispatcher is not None:
                async with aclosing(dispatcher.start_early(step.question)) as call_events:
                    async for call_event in call_events:
                        yield call_event
            timer.resume()


def void_response(run: Run, request: LlmRequest, void: tuple[str, ...]) -> Tombstone:
    """Emit that a response and its started calls are void; return the event. `void` holds the calls' IDs."""
    telemetry.event(run.inputs.world, request.place, "tombstone", None, {"tool_calls": len(void)})
    return Tombstone(request.turn, request.number, void)


async def _next_attempt(run: Run, request: LlmRequest, error: Exception) -> NextAttempt | None:
    """Return the next attempt after a failure, or None if the request is given up.

    Raises:
        Stopped: the run was aborted while the credentials were refreshed.
    """
    now_ns, options = run.inputs.world.now(), run.inputs.options
    failure = await _failure(run, request, error, now_ns)
    policy = RetryPolicy(
        max_retries=options.max_retries,
        is_background=request.is_background,
        is_unattended=options.unattended,
        has_fallback=options.fallback_model is not None and request.rebuild_arguments is not None,
        may_unstream=output_limits.may_unstream(request.arguments),
        is_fast=output_limits.field_of(request.arguments, "speed") == "fast",
    )
    following = next_attempt(failure, request.history, policy, run.inputs.world.random())
    if (
        following is not None
        and following.step == "refresh"
        and not await _refresh_credentials(run, request)
    ):
        following = None
    if following is not None:
        request.history = following.history
        if following.step == "lower" and failure.max_tokens_available is not None:
            timeout = run.progress.client.timeout
            request.arguments = output_limits.with_max_tokens(
                request.arguments, failure.max_tokens_available, timeout
            )
        elif following.step == "slow_down":
            suspended_ns = int((failure.requested_wait_s or 0.0) * 1e9)
            run.progress.conversation.fast_resumes_ns = now_ns + suspended_ns
            request.suspended_ns = suspended_ns
    elif not request.is_background:
        run.progress.conversation.breaker = run.progress.conversation.breaker.failed(
            failure.kind, now_ns
        )
    return following


async def _failure(run: Run, request: LlmRequest, error: Exception, now_ns: int) -> Failure:
    """Return the failure for an error.

    If the provider requests a wait until a date, the world confirms its length, which depends on the clock.
    """
    has_content = bool(request.message.get("content"))
    failure = failure_of(error, has_content=has_content, now_ns=now_ns)
    if isinstance(error, APIStatusError) and depends_on_clock(error.response.headers):
        key = f"{request.point}:retry-after:{request.number}"
        confirmed_s = await telemetry.ask(
            run.inputs.world, request.place, "elapsed", key, failure.requested_wait_s
        )
        failure = replace(
            failure,
            requested_wait_s=None if failure.requested_wait_s is None else confirmed_s or 0.0,
        )
    if failure.kind == "beyond_model" and failure.max_tokens_available is not None:
        model = str(output_limits.field_of(request.arguments, "model"))
        run.progress.conversation.reported_max_tokens[model] = failure.max_tokens_available
    return replace(
        failure,
        max_tokens_available=output_limits.useful_limit(
            failure, request.arguments, request.exceeded_limit
        ),
    )


async def _refresh_credentials(run: Run, request: LlmRequest) -> bool:
    """Refresh the client's credentials; return whether there are new credentials."""
    key = f"{request.point}:{request.number}"
    has_refreshed = await telemetry.ask(run.inputs.world, request.place, "refresh", key)
    check_abort(run, f"{request.point}:waiting:{request.number}")
    if has_refreshed is not True:
        return False
    run.renew_client()
    return True


async def _prepare_retry(
    run: Run, request: LlmRequest, error: Exception, following: NextAttempt
) -> AsyncGenerator[Event, None]:
    """Make the change, emit the failure, and wait for the backoff."""
    wait_s = following.wait_s + following.jitter_s
    match following.step:
        case "lower":
            yield _degraded(run, request, "answer_length", error_classes.classify(error))
        case "unstream":
            request.arguments = output_limits.unstreamed(
                request.arguments, run.progress.client.timeout
            )
            yield _degraded(run, request, "streaming", "broken_streams")
        case "fall_back":
            yield _fall_back(run, request)
        case "slow_down":
            request.arguments = run.at_current_speed(request.arguments)
            numbers = {"wait_ns": request.suspended_ns}
            telemetry.event(run.inputs.world, request.place, "speed", "standard", numbers)
            yield SpeedChange(request.turn, "standard", request.suspended_ns / 1e9)
        case "refresh" | "shorten" | None:
            pass
    name = error_classes.name_of(error)
    numbers = {"attempt": request.number, "wait_ns": int(wait_s * 1e9)}
    telemetry.event(run.inputs.world, request.place, "retry", name, numbers)
    yield Retry(request.turn, request.number, wait_s, name, error_classes.status_of(error))
    async for beat in _wait(run, request, following, f"{request.point}:waiting:{request.number}"):
        yield beat


def _degraded(run: Run, request: LlmRequest, capability: str, reason: str) -> Degraded:
    telemetry.event(run.inputs.world, request.place, "degraded", f"{capability}:{reason}", {})
    return Degraded(capability, reason)


def _fall_back(run: Run, request: LlmRequest) -> Fallback:
    """Use the fallback model for the rest of the run, without thinking, which only the old model can read."""
    old_model, new_model = run.inputs.options.model, run.inputs.options.fallback_model
    assert new_model is not None
    assert request.rebuild_arguments is not None
    run.fall_back_to(new_model)
    run.progress.state = replace(
        run.progress.state,
        messages=without_thinking(run.progress.state.messages),
        transition="model_fallback",
    )
    run.progress.conversation.fell_back_to = new_model
    request.arguments = output_limits.with_field(request.rebuild_arguments(), "model", new_model)
    request.transition = "model_fallback"
    telemetry.event(
        run.inputs.world, request.place, "fallback", new_model, {"attempt": request.number}
    )
    return Fallback(request.turn, old_model, new_model)


async def _wait(
    run: Run, request: LlmRequest, following: NextAttempt, point: str
) -> AsyncGenerator[Heartbeat, None]:
    """Wait before the next attempt; in an unattended run, yield heartbeats.

    Raises:
        Stopped: the run was aborted during the wait.
    """
    parts = list(wait_parts(following, is_unattended=run.inputs.options.unattended))
    place, total_s = request.place, sum(parts)
    span = telemetry.span("retry_wait", place, None, expected_s=total_s)
    with span if total_s > 0 else contextlib.nullcontext():
        for count, seconds in enumerate(parts):
            if seconds > 0:
                with contextlib.suppress(Interrupted):
                    async with Watch(run.inputs.world.abort, None) as watch:
                        await watch.guard(run.inputs.world.sleep(seconds))
            check_abort(run, point, count)
            if count + 1 < len(parts):
                waited_s = WAIT_PART_S * (count + 1)
                numbers = {"attempt": request.number, "waited_ns": int(waited_s * 1e9)}
                telemetry.event(run.inputs.world, place, "heartbeat", None, numbers)
                yield Heartbeat(request.turn, request.number, waited_s, following.wait_s)


def check_abort(run: Run, point: str, count: int = 0) -> None:
    """Raise `Stopped` if the run is aborted; `point` and `count` are those of `Abort.should_stop`."""
    if run.inputs.world.abort.should_stop(point, count):
        run.totals.void_responses.append({})
        raise Stopped(point, count)


async def _check_breaker(
    run: Run, request: LlmRequest
) -> AsyncGenerator[Degraded | Heartbeat, None]:
    """Check the circuit breaker. If it is open, an unattended run waits until it closes.

    Raises:
        error_classes.CircuitOpenError: the circuit breaker is open, so no request is sent.
        Stopped: the run was aborted.
    """
    breaker = run.progress.conversation.breaker
    if not breaker.is_open:
        return
    point = f"{request.point}:circuit:{breaker.refused}"
    waits = run.inputs.options.unattended and not request.is_background
    # The world confirms the values that depend on the clock: the length of the wait, or whether it has passed.
    remaining_s = breaker.remaining_s(run.inputs.world.now())
    elapsed = remaining_s if waits else remaining_s == 0
    confirmed = await telemetry.ask(run.inputs.world, request.place, "elapsed", point, elapsed)
    check_abort(run, point)
    if bool(confirmed) != waits:
        return
    run.progress.conversation.breaker = breaker.failed("circuit_open", run.inputs.world.now())
    yield _degraded(run, request, "provider", "circuit_open")
    if waits:
        async for beat in _wait(
            run, request, NextAttempt(request.history, confirmed), f"{point}:waiting"
        ):
            yield beat
        return
    text = f"{breaker.failures} requests in a row failed; no request is sent for {COOL_DOWN_S:g} seconds."
    http_request = httpx2.Request("POST", str(run.progress.client.base_url))
    raise error_classes.CircuitOpenError(text, http_request, body=None)
