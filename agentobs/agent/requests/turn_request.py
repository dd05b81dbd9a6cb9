"""Send the LLM request of a turn, and handle incomplete responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.events import Continuation, Event, Message
from agentobs.agent.model import error_classes, output_limits
from agentobs.agent.model.prompt_cache import RequestMessages
from agentobs.agent.model.thinking import without_thinking
from agentobs.agent.requests.budget_check import enforce_budget
from agentobs.agent.requests.llm_request import LlmRequest, send, void_response
from agentobs.agent.requests.prefix_stability import RequestSettings, prepare_settings
from agentobs.agent.requests.request_hooks import run_pre_request_hooks
from agentobs.agent.state import State, deep_copy, prompted_again, request_arguments
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tools.tool import Tool
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place


async def send_turn_request(
    run: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send requests until there is a complete response; the last event is its `Message`.

    Concurrency-safe calls start while the response arrives. The first time in a turn that a
    response is cut at its token limit, it is void and the request is repeated with a higher limit.
    If the repeated request fails, the cut response is kept.

    Raises:
        error_classes.PROVIDER_ERRORS: the last failure, if the request is given up. If
            `error_classes.is_too_long` is true, a shorter conversation may help.
        Stopped: the run was aborted.
    """
    progress = run.progress
    if progress.conversation.fell_back_to not in (None, run.inputs.options.model):
        # Thinking is signed by the model that wrote it, and the current model cannot use it.
        messages = without_thinking(progress.state.messages)
        progress.state = replace(progress.state, messages=messages)
        progress.conversation.fell_back_to = None
    settings = await prepare_settings(run, tools, here)
    for event in settings.events:
        yield event
    sent, hooks_ran = await run_pre_request_hooks(run, here)
    for ran in hooks_ran:
        yield ran
    changed = None if sent is None else _ChangedMessages(sent, run.inputs.options.model)
    number = exceeded_limit = 0
    while True:
        try:
            model = run.inputs.options.model
            with telemetry.span("llm_request", run.request_place(here), model) as place:
                request = _turn_request(run, settings, place, number, exceeded_limit, changed)
                async with aclosing(send(run, request, dispatcher, here)) as events:
                    async for event in events:
                        yield event
        except error_classes.PROVIDER_ERRORS as error:
            if progress.cut_response is None or not error_classes.exceeds_max_tokens(error):
                raise
            max_tokens = exceeded_limit or progress.state.max_tokens
            progress.state = replace(progress.state, max_tokens=max_tokens)
            for message in keep_cut_response(run):
                yield message
            return
        if progress.subtype != "success":
            return
        raised = _raised_limit(run, request)
        if raised is not None:
            async for reached in enforce_budget(run, here, f"{progress.state.turn}:raised"):
                yield reached
        if raised is None or progress.subtype != "success":
            break
        number, exceeded_limit = request.number, output_limits.max_tokens_of(request.arguments)
        progress.cut_response = request.message
        async for event in _void(run, request, dispatcher):
            yield event
        progress.state = replace(
            progress.state, max_tokens=raised, transition="max_output_tokens_raised"
        )
        yield _continuation(run, here, 1, raised, is_void=True)
    has_no_calls = output_limits.has_no_calls(request.message)
    if error_classes.is_too_long(request.message) and has_no_calls:
        async for event in _void(run, request, dispatcher):
            yield event
        text = "The response has filled the model's context window."
        url = str(progress.client.base_url)
        raise error_classes.WindowFullError(text, httpx2.Request("POST", url), body=None)
    run.accept_response(request.message)
    yield Message(progress.state.turn, deep_copy(request.message))


def keep_cut_response(run: Run) -> Iterator[Message]:
    """If a response was cut, make it the response of the turn, and yield its event."""
    message = run.restore_cut_response()
    if message is not None:
        yield Message(run.progress.state.turn, deep_copy(message))


@dataclass(frozen=True, slots=True)
class _ChangedMessages:
    """The messages that hooks have changed for the request of a turn."""

    messages: tuple[Json, ...]
    model: str
    """The model for which they were changed."""

    def for_model(self, model: str) -> tuple[Json, ...]:
        """Return the messages for a model, which cannot read the thinking of another model."""
        return self.messages if model == self.model else without_thinking(self.messages)


def _turn_request(
    run: Run,
    settings: RequestSettings,
    place: Place | None,
    number: int,
    exceeded_limit: int,
    changed: _ChangedMessages | None,
) -> LlmRequest:
    """Return the next LLM request of the turn.

    Args:
        run: the run.
        settings: the settings of the turn.
        place: the place inside the span of the request.
        number: the number of attempts in the turn so far.
        exceeded_limit: the limit at which the previous response was cut; 0 if none was cut.
        changed: the messages that are sent in place of the stored ones, or None.
    """
    progress = run.progress

    def build_arguments() -> dict[str, Any]:
        model, state, known = run.inputs.options.model, progress.state, progress.request_messages
        if changed is not None:
            state, known = replace(state, messages=changed.for_model(model)), RequestMessages()
        arguments = request_arguments(
            state,
            replace(settings.options, model=model),
            settings.tools,
            run.inputs.output_declaration,
            known,
        )
        arguments = run.at_current_speed(arguments)
        limit = _response_limit(run, arguments, progress.state)
        if limit == output_limits.max_tokens_of(arguments):
            return arguments
        # The SDK checks a limit that the caller has set, but not a limit that the loop has raised.
        timeout = progress.client.timeout if progress.state.max_tokens else None
        return output_limits.with_max_tokens(arguments, limit, timeout)

    return LlmRequest(
        turn=progress.state.turn,
        point=str(progress.state.turn),
        arguments=build_arguments(),
        place=place,
        source=run.inputs.source,
        transition=progress.state.transition,
        rebuild_arguments=build_arguments,
        number=number,
        exceeded_limit=exceeded_limit,
    )


def _response_limit(run: Run, arguments: Mapping[str, Any], state: State) -> int:
    """Return the `max_tokens` for a response: the raised or configured limit, capped at the model's known maximum.

    If the maximum is not higher than the thinking budget, it is ignored, and the provider reports
    the error.
    """
    reported = run.progress.conversation.reported_max_tokens.get(run.inputs.options.model)
    if reported is not None and reported <= output_limits.thinking_budget_of(arguments):
        reported = None
    return output_limits.capped(
        state.max_tokens or output_limits.max_tokens_of(arguments), reported
    )


def _raised_limit(run: Run, request: LlmRequest) -> int | None:
    """Return the raised limit if the response was cut for the first time in the turn, or else None."""
    if not output_limits.is_cut(request.message) or run.progress.state.max_tokens is not None:
        return None
    reported = run.progress.conversation.reported_max_tokens.get(run.inputs.options.model)
    return output_limits.raised_limit(
        request.arguments, run.inputs.options.max_tokens_raised, reported
    )


async def _void(
    run: Run, request: LlmRequest, dispatcher: Dispatcher
) -> AsyncGenerator[Event, None]:
    """Count a complete response that is void, and stop its started calls."""
    run.totals.void_responses.append(request.message)
    run.count_usage(request.message, "exact")
    yield void_response(run, request, await dispatcher.discard())


def _continuation(
    run: Run, here: Place | None, number: int, max_tokens: int, *, is_void: bool
) -> Continuation:
    label, numbers = "void" if is_void else "kept", {"number": number, "max_tokens": max_tokens}
    telemetry.event(run.inputs.world, here, "continuation", label, numbers)
    return Continuation(run.progress.state.turn, number, max_tokens, is_void)


def continue_response(run: Run, state: State, here: Place | None) -> Iterator[Event]:
    """Continue a cut or paused response without calls, or end the run if there were too many continuations.

    The complete blocks of the response are already in the conversation.
    """
    message = run.totals.responses[-1]
    is_paused = output_limits.is_paused(message)
    response_text = output_limits.text_so_far(state.response_text, message, is_paused=is_paused)
    if is_paused:
        if state.pauses >= output_limits.PAUSES_MAX:
            text = (
                f"The model has paused its response {output_limits.PAUSES_MAX + 1} times in a row."
            )
            url = str(run.progress.client.base_url)
            error = error_classes.PausedError(text, httpx2.Request("POST", url), body=None)
            run.fail("too_many_pauses", error)
            return
        run.progress.next_state = replace(
            state,
            phase="awaiting_model",
            turn=state.turn + 1,
            transition="pause_turn",
            pauses=state.pauses + 1,
            response_text=response_text,
        )
        return
    number = state.continuations + 1
    if number > output_limits.CONTINUATIONS_MAX:
        run.end("error_during_execution", "max_output_tokens")
        numbers = {"continuations": number - 1}
        telemetry.event(run.inputs.world, here, "max_output_tokens", None, numbers)
        return
    prompt = output_limits.CONTINUE_PROMPT
    next_state = prompted_again(state, [prompt], "max_output_tokens_continued")
    run.progress.next_state = replace(
        next_state, continuations=number, max_tokens=state.max_tokens, response_text=response_text
    )
    options = run.inputs.options
    arguments = {"max_tokens": options.max_tokens, "extra_body": options.extra}
    limit = _response_limit(run, arguments, state)
    yield _continuation(run, here, number, limit, is_void=False)
