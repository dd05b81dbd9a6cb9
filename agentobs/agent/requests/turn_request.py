"""Send the LLM request of a turn, and handle incomplete responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import httpx2

from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.events import Continuation, Event, Message
from agentobs.agent.model import error_classes, output_limits
from agentobs.agent.model.thinking import without_thinking
from agentobs.agent.requests.budget_check import within_budget
from agentobs.agent.requests.llm_request import Request, answer, void_answer
from agentobs.agent.requests.prefix_stability import RequestSettings, settle
from agentobs.agent.state import State, go_on, own_copy, request
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place


async def ask(
    this: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Send requests until there is a complete response; the last event is its `Message`.

    Concurrency-safe calls start while it arrives. Once per turn, a response that was cut at its limit is void and the
    request is repeated with a higher limit. If that fails, the cut response is kept.

    Raises:
    error_classes.PROVIDER_ERRORS: the last failure, if retrying is pointless. If `recovery.is_too_long`
    is true, a shorter conversation may help.
        Stopped: the run was aborted.
    """
    if this.talk.fell_back_to not in (None, this.options.model):
        # The other model's thinking is signed by it; the current model cannot use it.
        this.state = replace(this.state, messages=without_thinking(this.state.messages))
        this.talk.fell_back_to = None
    settled = await settle(this, tools, here)
    for event in settled.events:
        yield event
    number = had = 0
    while True:
        try:
            with telemetry.span("llm_request", this.asking(here), this.options.model) as inside:
                llm_request = _turn_request(this, settled, inside, number, had)
                async with aclosing(answer(this, llm_request, dispatcher, here)) as events:
                    async for event in events:
                        yield event
        except error_classes.PROVIDER_ERRORS as error:
            if this.cut is None or not error_classes.is_beyond(error):
                raise
            this.state = replace(this.state, max_tokens=had or this.state.max_tokens)
            for message in stands(this):
                yield message
            return
        if this.subtype != "success":
            return
        more = _more_room(this, llm_request)
        if more is not None:
            async for reached in within_budget(this, here, f"{this.state.turn}:raised"):
                yield reached
        if more is None or this.subtype != "success":
            break
        number, had = llm_request.number, output_limits.max_tokens_of(llm_request.arguments)
        this.cut = llm_request.message
        async for event in _void(this, llm_request, dispatcher):
            yield event
        this.state = replace(this.state, max_tokens=more, transition="max_output_tokens_raised")
        yield _continuation(this, here, 1, more, is_void=True)
    if error_classes.is_too_long(llm_request.message) and output_limits.has_no_calls(
        llm_request.message
    ):
        async for event in _void(this, llm_request, dispatcher):
            yield event
        text = "The answer has filled the model's context window."
        url = str(this.client.base_url)
        raise error_classes.WindowFullError(text, httpx2.Request("POST", url), body=None)
    this.answered(llm_request.message)
    yield Message(this.state.turn, own_copy(llm_request.message))


def stands(this: Run) -> Iterator[Message]:
    """Keep a cut response if the repeated request failed."""
    message = this.put_back()
    if message is not None:
        yield Message(this.state.turn, own_copy(message))


def _turn_request(
    this: Run, settled: RequestSettings, inside: Place | None, number: int, had: int
) -> Request:
    """Return the request of the turn after `number` attempts; `had` is the limit at which the response was cut."""

    def arguments() -> dict[str, Any]:
        options = replace(settled.options, model=this.options.model)
        made = request(this.state, options, settled.tools, this.owed, this.sent)
        most = _most(this, made, this.state)
        if most == output_limits.max_tokens_of(made):
            return made
        # A limit set by the caller is validated by the SDK.
        timeout = this.client.timeout if this.state.max_tokens else None
        return output_limits.with_max_tokens(made, most, timeout)

    return Request(
        turn=this.state.turn,
        point=str(this.state.turn),
        arguments=arguments(),
        inside=inside,
        source=this.source,
        transition=this.state.transition,
        remake=arguments,
        number=number,
        had=had,
    )


def _most(this: Run, arguments: Mapping[str, Any], state: State) -> int:
    """Return the response limit: the raised or the configured one, capped at the model's known
    maximum.

    If the cap leaves no room besides thinking, it is ignored and the provider reports the error.
    """
    reported = this.talk.most_tokens.get(this.options.model)
    if reported is not None and reported <= output_limits.thinking_of(arguments):
        reported = None
    return output_limits.within(
        state.max_tokens or output_limits.max_tokens_of(arguments), reported
    )


def _more_room(this: Run, llm_request: Request) -> int | None:
    """Return the raised limit for a response that was cut for the first time; otherwise None."""
    if not output_limits.is_cut(llm_request.message) or this.state.max_tokens is not None:
        return None
    reported = this.talk.most_tokens.get(this.options.model)
    return output_limits.raised(llm_request.arguments, this.options.max_tokens_raised, reported)


async def _void(
    this: Run, llm_request: Request, dispatcher: Dispatcher
) -> AsyncGenerator[Event, None]:
    """Count a complete but void response, and stop the calls that had started."""
    this.broken.append(llm_request.message)
    this.counted(llm_request.message, "exact")
    yield void_answer(this, llm_request, await dispatcher.discard())


def _continuation(
    this: Run, here: Place | None, number: int, max_tokens: int, *, is_void: bool
) -> Continuation:
    label, numbers = "void" if is_void else "kept", {"number": number, "max_tokens": max_tokens}
    telemetry.event(this.world, here, "continuation", label, numbers)
    return Continuation(this.state.turn, number, max_tokens, is_void)


def unfinished(this: Run, state: State, here: Place | None) -> Iterator[Event]:
    """Continue a response that is not finished and calls no tool, or end the run if the limit is
    reached.

    Its complete parts are already in the conversation.
    """
    message = this.answers[-1]
    is_paused = output_limits.is_paused(message)
    text_so_far = output_limits.joined_text(state.said, message, is_paused=is_paused)
    if is_paused:
        if state.pauses >= output_limits.PAUSES_MAX:
            text = f"The model has paused its answer {output_limits.PAUSES_MAX + 1} times in a row."
            url = str(this.client.base_url)
            error = error_classes.PausedError(text, httpx2.Request("POST", url), body=None)
            this.failed("too_many_pauses", error)
            return
        this.following = replace(
            state,
            phase="awaiting_model",
            turn=state.turn + 1,
            transition="pause_turn",
            pauses=state.pauses + 1,
            said=text_so_far,
        )
        return
    number = state.continuations + 1
    if number > output_limits.CONTINUATIONS_MAX:
        this.ended("error_during_execution", "max_output_tokens")
        telemetry.event(this.world, here, "max_output_tokens", None, {"continuations": number - 1})
        return
    following = go_on(state, [output_limits.GO_ON], "max_output_tokens_continued")
    this.following = replace(
        following, continuations=number, max_tokens=state.max_tokens, said=text_so_far
    )
    options = {"max_tokens": this.options.max_tokens, "extra_body": this.options.extra}
    yield _continuation(this, here, number, _most(this, options, state), is_void=False)
