"""The loop: ask the model, run the tools it calls, tell it what they answered, until it calls none.

Everything it needs of the outside it asks of the world; everything that happens comes out as an event.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from anthropic import AsyncAnthropic

from agentobs.agent import recovery, telling
from agentobs.agent.dispatch import dispatch
from agentobs.agent.events import (
    Event,
    Message,
    RequestStart,
    Result,
    Retry,
    ToolDone,
    billed,
)
from agentobs.agent.execution import live_tools
from agentobs.agent.model import attempt
from agentobs.agent.state import (
    Conversation,
    Options,
    Prompt,
    State,
    begin,
    calls,
    follow_up,
    hear,
    request,
)
from agentobs.agent.tools import Tool
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place
from agentobs.records.messages import text_of
from agentobs.world import World, in_force


def live_world(client: AsyncAnthropic, tools: Sequence[Tool] = ()) -> World:
    """Return the world in force: this client, these tools, the system's clock, ids and chance.

    Where another world stands for the live one, as in a replay, that one is returned.
    """
    return in_force(World(client=client, run_tool=live_tools(tools)))


async def run(
    prompt: Prompt,
    *,
    world: World,
    options: Options,
    tools: Sequence[Tool] = (),
    conversation: Conversation | None = None,
) -> AsyncGenerator[Event, None]:
    """Answer a prompt; yield what happens, a `Result` last.

    `tools` are what the model is told of; `world.run_tool` runs them. With a `conversation` the run goes
    on from it. Close the generator (or cancel its task) to stop: every open span is closed then.

    Raises:
        Exception: what is neither the provider's failure nor a tool's leaves as it is, without a `Result`:
            a request that the SDK refuses to build, or a replay that differs from its recording (any
            `AnthropicError` that is not in `recovery.PROVIDER_ERRORS`).
    """
    talk = Conversation() if conversation is None else conversation
    this = _Run(world, options, tuple(tools), world.client.with_options(max_retries=0), world.now())
    failure: Exception | None = None
    try:
        with telling.interaction(world, options.agent) as told:
            async with aclosing(_turns(this, talk, begin(talk, prompt), told)) as turns:
                async for event in turns:
                    yield event
    except recovery.PROVIDER_ERRORS as error:
        failure = error
    yield _result(this, told, failure)


async def complete(
    prompt: Prompt,
    *,
    world: World,
    options: Options,
    tools: Sequence[Tool] = (),
    conversation: Conversation | None = None,
) -> Result:
    """Answer a prompt and return the result alone; arguments and errors are those of `run`."""
    running = run(prompt, world=world, options=options, tools=tools, conversation=conversation)
    async with aclosing(running) as events:
        async for event in events:
            if isinstance(event, Result):
                return event
    raise AssertionError("a run ended without a result")


@dataclass(frozen=True, slots=True)
class _Run:
    """What stays the same during one run, and what the model answered."""

    world: World
    options: Options
    tools: tuple[Tool, ...]
    client: AsyncAnthropic
    """The world's client without its own retries: the loop owns them."""
    started_ns: int
    answers: list[Json] = field(default_factory=list)
    """Whole answers."""
    broken: list[Json] = field(default_factory=list)
    """What came of answers that broke off."""


async def _turns(
    this: _Run, talk: Conversation, state: State, told: telling.Interaction
) -> AsyncGenerator[Event, None]:
    """Ask, run tools, and go on while the answers call tools."""
    while True:
        here = telling.in_turn(told.place, state.turn)
        async with aclosing(_ask(this, state, here)) as asking:
            async for event in asking:
                yield event
        message = this.answers[-1]
        talk.messages, talk.turns = hear(state, message), state.turn
        asked = calls(message)
        if not asked:
            return
        results: list[ToolDone] = []
        async with aclosing(dispatch(asked, this.tools, this.world, here)) as running:
            async for step in running:
                yield step
                if isinstance(step, ToolDone):
                    results.append(step)
        state = follow_up(state, message, results)
        talk.messages = state.messages
        most = this.options.max_turns
        if most is not None and state.tool_turns >= most:
            told.subtype = "error_max_turns"
            telling.event(this.world, here, "max_turns", None, {"max_turns": most})
            return


async def _ask(this: _Run, state: State, here: Place | None) -> AsyncGenerator[Event, None]:
    """Ask until there is a whole answer; the last event is its `Message`.

    Raises:
        recovery.PROVIDER_ERRORS: the last failure, when there is no use in asking again.
    """
    arguments = request(state, this.options, this.tools)
    message: Json = {}
    with telling.span("llm_request", here, this.options.model) as inside:
        for number in itertools.count(1):
            yield RequestStart(state.turn, number)
            try:
                async with aclosing(attempt(this.client, arguments, inside, message)) as deltas:
                    async for delta in deltas:
                        yield delta
                break
            except recovery.PROVIDER_ERRORS as error:
                this.broken.append(message)
                retry = _retry(this, state.turn, number, error)
                if retry is None:
                    raise
            message = {}
            numbers = {"attempt": number, "wait_ns": int(retry.wait_s * 1e9)}
            telling.event(this.world, inside, "retry", retry.error, numbers)
            yield retry
            await this.world.sleep(retry.wait_s)
    this.answers.append(message)
    yield Message(state.turn, message)


def _retry(this: _Run, turn: int, number: int, error: Exception) -> Retry | None:
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


def _result(this: _Run, told: telling.Interaction, error: Exception | None) -> Result:
    last = this.answers[-1] if this.answers else {}
    return Result(
        subtype="error_during_execution" if error else told.subtype,
        text=text_of(last.get("content")),
        stop_reason=last.get("stop_reason"),
        num_turns=len(this.answers),
        error=recovery.name_of(error) if error else None,
        error_text=recovery.text_of(error) if error else None,
        usage=billed(this.options.model, [*this.answers, *this.broken]),
        duration_ns=max(this.world.now() - this.started_ns, 0),
        session_id=told.place.session_id if told.place else None,
    )
