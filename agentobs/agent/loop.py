"""The agent loop: call the model, run the tools it calls, return their results, until it calls none.

All I/O goes through the injected `World`, and everything that happens is yielded as an event. There
are two phases: awaiting the model, and dispatching its tools. Each step replaces the whole state,
including the reason for the next LLM request.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

from anthropic import AsyncAnthropic

from agentobs import runtime
from agentobs.agent import telemetry
from agentobs.agent.agent_run import Run
from agentobs.agent.compaction import compaction
from agentobs.agent.compaction.nudge import nudge
from agentobs.agent.compaction.overflow import ask_fitting
from agentobs.agent.context.token_budget import check as check_budget
from agentobs.agent.events import Event, FollowUp, OutputRetry, Result, Steering
from agentobs.agent.execution.classifier import Classifier, classified
from agentobs.agent.execution.hook_runner import LiveHooks
from agentobs.agent.execution.live_answers import Inbox, LiveAnswers, Person, token_refresh
from agentobs.agent.execution.tool_runner import Keep, live_tools
from agentobs.agent.hooks import Hook
from agentobs.agent.interruption import Stopped
from agentobs.agent.lifecycle_hooks import after_failure, at_the_beginning, before_the_end
from agentobs.agent.model import error_classes
from agentobs.agent.model.output_limits import is_cut, is_unfinished
from agentobs.agent.model.prompt import Written
from agentobs.agent.model.thinking import check as check_thinking
from agentobs.agent.requests.budget_check import is_over_budget, within_budget
from agentobs.agent.requests.turn_request import stands, unfinished
from agentobs.agent.state import (
    Conversation,
    Options,
    Prompt,
    State,
    Tools,
    answered,
    begin,
    broken_off,
    calls,
    go_on,
    next_turn,
    told_apart,
    with_context,
)
from agentobs.agent.sub_agents.starter import Starter, check_agents, entered
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tool_calls.plan import Crew
from agentobs.agent.tools import structured_output
from agentobs.agent.tools.tool import Tool, check_tools
from agentobs.errors import ReplaySays, UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, WorldQuestion
from agentobs.world import Abort, World


def live_world(
    client: AsyncAnthropic,
    tools: Sequence[Tool] = (),
    *,
    person: Person | None = None,
    inbox: Inbox | None = None,
    abort: Abort | None = None,
    roots: Sequence[Path] = (),
    keep: Keep | None = None,
    spent_today: Callable[[], Decimal] | None = None,
    refresh: Callable[[], object] | None = None,
    load: Callable[[Json], Json] | None = None,
    sections: Mapping[str, Written] | None = None,
    memory: Callable[[], str | None] | None = None,
    hooks: Sequence[Hook] = (),
    hook_model: str | None = None,
    classifier: Classifier | None = None,
) -> World:
    """Return the current world: this client, these tools, the system's clock, IDs and randomness.

    If another world replaces the live one, as in a replay, that world is returned.

    Args:
        client: the provider's client.
        tools: the tools that can run.
        person: requests approval from a person; None if no person is available.
        inbox: delivers messages to the agent while it runs.
        abort: stops runs of this world from outside.
        roots: the folders that must contain the paths of tools; defaults to the working directory.
        keep: stores the full version of a result that is too long for the model, such as
            `agentobs.wiring.keep_result`.
        spent_today: returns the spending since midnight UTC, for `Budget.day_usd`:
            `agentobs.wiring.spent_today`.
        refresh: renews the client's credentials and returns whether it did. Called once per request
            refused with a 401. Sync (run in a thread) or async. By default, a client with
            `credentials` is asked for a new token.
        load: reads an earlier conversation to resume or fork it: `agentobs.wiring.load_conversation`.
        sections: functions that write sections of the system prompt from outside data:
            `SystemPrompt.asked`.
        memory: returns the session's memory, which replaces a summary when the conversation gets
            too long.
        hooks: the hooks that can run: the table in the options.
        hook_model: default model for prompt and agent hooks.
        classifier: answers approval requests before the person, or if there is no person.
    """
    running = live_tools(tools, keep=keep, person=person is not None)
    hooked = LiveHooks(hooks, client, model=hook_model, tools=tools, roots=roots, run=run)
    answers = LiveAnswers(
        tools,
        running,
        person=person,
        inbox=inbox,
        roots=roots,
        spent_today=spent_today,
        refresh=refresh or token_refresh(client),
        load=load,
        sections=sections,
        memory=memory,
        classify=None if classifier is None else partial(classified, classifier, client),
        hooks=hooked.answer,
    )
    return runtime.world_in_force(
        World(
            client=client,
            run_tool=running.run_tool,
            stop_tool=running.stop_tool,
            tool_function=running.function,
            is_mutating=running.is_mutating,
            ask=answers.ask,
            settled=hooked.settled,
            abort=abort or Abort(),
        )
    )


async def run(
    prompt: Prompt,
    *,
    world: World,
    options: Options,
    tools: Tools = (),
    conversation: Conversation | None = None,
    source: QuerySource = "main",
) -> AsyncGenerator[Event, None]:
    """Run the agent on a prompt; yield its events, always ending with a `Result`.

    `tools` are declared to the model; `world.run_tool` executes them. With a `conversation`, the
    run continues it. `source` is the source of the LLM requests. To leave immediately and without a
    result, close the generator or cancel its task; every open span is closed. To stop a run
    gracefully, use the world's `abort`.

    Raises:
        UsageError: duplicate tool names, an output that cannot be declared to the model, an invalid
            thinking configuration, or an invalid token budget.
        ReplaySays: a replay differs from its recording; raised unchanged, without a result.
    """
    if not callable(tools):
        _check(tools, options)
    check_thinking(options.thinking, options.max_tokens, options.betas, options.extra)
    check_budget(options.token_budget)
    talk = Conversation() if conversation is None else conversation
    owed = structured_output.declaration(options.output) if options.output is not None else None
    this = Run(world, options, tools, owed, talk, begin(talk, prompt), world.now(), source)
    async with aclosing(_played(this)) as events:
        async for event in events:
            yield event


async def _played(this: Run) -> AsyncGenerator[Event, None]:
    """Play a run, main agent or sub-agent, to its result."""
    try:
        with _recorded_interaction(this) as recorded:
            try:
                async with aclosing(_turns(this, recorded)) as turns:
                    async for event in turns:
                        yield event
            except error_classes.PROVIDER_ERRORS as error:
                this.failed(error_classes.terminal_reason(error), error)
                async for ran in after_failure(this, recorded.place):
                    yield ran
                raise
            finally:
                recorded.subtype, recorded.is_stopped = this.subtype, this.is_stopped
    except error_classes.PROVIDER_ERRORS:
        pass
    except ReplaySays:
        raise
    except Exception as error:
        this.failed("internal_error", error)
    yield this.result(recorded.place)


def _recorded_interaction(this: Run) -> contextlib.AbstractContextManager[telemetry.Interaction]:
    agent = this.options.agent
    if this.parent is not None and not this.is_background:
        return telemetry.sub_agent(agent)
    return telemetry.interaction(this.world, agent, is_background=this.is_background)


async def complete(
    prompt: Prompt,
    *,
    world: World,
    options: Options,
    tools: Tools = (),
    conversation: Conversation | None = None,
) -> Result:
    """Run the agent on a prompt and return only the result; arguments and errors are those of `run`."""
    running = run(prompt, world=world, options=options, tools=tools, conversation=conversation)
    async with aclosing(running) as events:
        async for event in events:
            if isinstance(event, Result):
                return event
    raise AssertionError("a run ended without a result")


async def _turns(this: Run, recorded: telemetry.Interaction) -> AsyncGenerator[Event, None]:
    """Run turns until the last one."""
    async for ran in at_the_beginning(this, recorded.place):
        yield ran
    if this.subtype != "success":
        return
    key = f"{this.state.turn}:start"
    texts, told_of = await entered(this, recorded.place, key, this.state.turn)
    for each in told_of:
        yield each
    this.following = with_context(this.state, texts)
    while this.following is not None:
        state, this.following = this.following, None
        here, this.depth = telemetry.in_turn(this.world, recorded.place, state.turn), 0
        async for reached in within_budget(this, here, f"{state.turn}:before"):
            yield reached
        tools = await _tools_of(this, here, state.turn) if this.subtype == "success" else None
        if this.world.abort.reached(f"{state.turn}:beginning", 0):
            this.talk.messages = state.messages
            this.settle()
            _abort(this, f"{state.turn}:beginning", 0, here)
            return
        if tools is None:
            return
        this.state, options = state, this.options
        crew = Crew(
            this.world,
            tools,
            options.permissions,
            this.talk,
            this.used,
            options.output,
            this.hooks,
            Starter(this, tools, _played) if any(tool.agents for tool in tools) else None,
            this.refused,
        )
        dispatcher = Dispatcher(crew, here, state.turn)
        try:
            async with aclosing(_turn(this, tools, dispatcher, here)) as events:
                async for event in events:
                    yield event
        finally:
            await dispatcher.close()
            this.tools_ns += dispatcher.tools_ns


async def _turn(
    this: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Call the model and run its tool calls; store the next state unless the run ends here."""
    before = len(this.answers)
    try:
        async with aclosing(ask_fitting(this, tools, dispatcher, here)) as events:
            async for event in events:
                yield event
        if len(this.answers) == before:  # failed attempts have used up the budget
            for stood in _as_far_as_it_came(this):
                yield stood
            return
        state = this.state
        message, doubles = told_apart(this.answers[-1], this.used)
        if is_cut(message):
            state, requested = broken_off(state, message)
        else:
            state, requested = answered(state, message), calls(message)
    except error_classes.PROVIDER_ERRORS:
        for stood in _as_far_as_it_came(this):
            yield stood
        raise
    except Stopped as stopped:
        state = this.state
        dispatcher.stopped_at = stopped.point, stopped.count
        message, doubles = told_apart({"content": [], **this.broken[-1]}, this.used)
        state, requested = broken_off(state, message)
    else:
        compaction.counted(this, state.messages, this.answers[-1].get("usage"))
    # Store the response before its tools run, so that a run that is killed here can be resumed.
    this.keep(state)
    this.used |= {question.tool_use_id for question in requested}
    if requested:
        dispatcher.deciding.over_budget = await is_over_budget(this, here)
        async with aclosing(dispatcher.finish(requested, doubles)) as running:
            async for step in running:
                yield step
        state = next_turn(
            state, dispatcher.results, dispatcher.steering, dispatcher.deciding.context
        )
        if dispatcher.stopped_at is None:
            key = f"{state.turn - 1}:tools"
            texts, told_of = await entered(this, here, key, state.turn)
            for each in told_of:
                yield each
            if texts:
                state = replace(with_context(state, texts), transition="background_result")
        this.ran(dispatcher, state)
    if dispatcher.stopped_at is not None:
        _abort(this, *dispatcher.stopped_at, here)
    elif requested:
        if dispatcher.steering:
            yield _steered(this, here, state.turn - 1, dispatcher.steering, dispatcher.skipped)
        async for event in _after_tools(this, state, dispatcher, here):
            yield event
    else:
        async for event in _after_answer(this, state, here):
            yield event


def _as_far_as_it_came(this: Run) -> Iterator[Event]:
    """Keep a cut response if the repeated request failed; the run ends."""
    for message in stands(this):
        this.keep(broken_off(this.state, this.answers[-1])[0])
        yield message


async def _after_tools(
    this: Run, state: State, dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Continue after tool results, unless the output is complete or the turn limit is reached."""
    most = this.options.max_turns
    if dispatcher.deciding.hook_stops:
        this.ended_by_hook("hook_stopped", "\n".join(dispatcher.deciding.hook_reasons))
    elif dispatcher.output is not None and not dispatcher.steering:
        async for ran in before_the_end(this, state, here):
            yield ran
        this.output = dispatcher.output if this.following is None else None
    elif state.output_retries > this.options.max_output_retries:
        this.ended("error_max_structured_output_retries", "max_structured_output_retries")
    elif most is not None and state.tool_turns >= most:
        this.ended("error_max_turns", "max_turns")
        telemetry.event(this.world, here, "max_turns", None, {"max_turns": most})
    else:
        this.following = state


async def _after_answer(this: Run, state: State, here: Place | None) -> AsyncGenerator[Event, None]:
    """End after a response without calls, unless an output is still required or there are new
    messages.
    """
    if this.answers[-1].get("stop_reason") == "refusal":
        this.ended("error_during_execution", "refusal")
        return
    if is_unfinished(this.answers[-1]):
        for event in unfinished(this, state, here):
            yield event
        return
    if this.options.output is not None:
        number = state.output_retries + 1
        if number > this.options.max_output_retries:
            this.ended("error_max_structured_output_retries", "max_structured_output_retries")
            return
        telemetry.event(this.world, here, "structured_output_retry", None, {"number": number})
        this.following = go_on(state, [structured_output.NUDGE], "structured_output_retry")
        yield OutputRetry(state.turn, number)
        return
    said = await telemetry.ask(this.world, here, "steering", f"{state.turn}:end")
    if said:
        this.following = go_on(state, said, "steering")
        yield _steered(this, here, state.turn, tuple(said), ())
        return
    texts, told_of = await entered(this, here, f"{state.turn}:end", state.turn + 1)
    if texts:
        this.following = go_on(state, texts, "background_result")
        for each in told_of:
            yield each
        return
    said = await telemetry.ask(this.world, here, "follow_up", f"{state.turn}:end")
    if said:
        this.following = go_on(state, said, "follow_up")
        telemetry.event(this.world, here, "follow_up", None, {"texts": len(said)})
        yield FollowUp(state.turn, tuple(said))
        return
    nudged = nudge(this, here)
    if nudged is not None:
        this.following = go_on(state, [nudged[1]], "token_budget")
        yield nudged[0]
        return
    async for ran in before_the_end(this, state, here):
        yield ran


def _steered(
    this: Run, here: Place | None, turn: int, texts: tuple[str, ...], skipped: tuple[str, ...]
) -> Steering:
    telemetry.event(
        this.world, here, "steering", None, {"texts": len(texts), "skipped": len(skipped)}
    )
    return Steering(turn, texts, skipped)


def _abort(this: Run, point: str, count: int, here: Place | None) -> None:
    """Record where the run was aborted, so that a replay stops at the same point."""
    streaming = point.split(":")[1] not in ("dispatch", "call", "hook", "consent", "tool", "tools")
    this.ended("error_during_execution", "aborted_streaming" if streaming else "aborted_tools")
    question = WorldQuestion("abort", point)
    telemetry.emit_answer(this.world, here, question, this.world.now(), {"count": count})
    telemetry.event(this.world, here, "abort", point.split(":")[1], {"count": count})


async def _tools_of(this: Run, here: Place | None, turn: int) -> Sequence[Tool] | None:
    """Return the tools of a turn, optional tools only if they are available.

    Returns None if a required tool is missing; the run ends then.
    """
    tools = this.tools() if callable(this.tools) else this.tools
    if callable(this.tools):
        _check(tools, this.options)
    tools = [_named(tool, this.world.tool_name(tool.name, tool.aliases)) for tool in tools]
    optional = [tool.name for tool in tools if tool.available is not None]
    if not optional:
        return tools
    there = await telemetry.ask(this.world, here, "tool_set", str(turn), optional)
    missing = [t for t in tools if t.available is not None and t.name not in there]
    needed = [tool.name for tool in missing if not tool.optional]
    if needed:
        error = UsageError(f"these tools are not available: {', '.join(needed)}")
        this.failed("tool_set_error", error)
        return None
    return [tool for tool in tools if tool not in missing]


def _check(tools: Sequence[Tool], options: Options) -> None:
    check_tools(tools)
    check_agents(tools)
    if options.output is not None and any(tool.name == structured_output.NAME for tool in tools):
        raise UsageError(
            f"a tool is named {structured_output.NAME}, which is reserved for the output",
            todo="Rename the tool",
        )


def _named(tool: Tool, name: str) -> Tool:
    """Return a tool under its current name; its own name becomes an alias."""
    if name == tool.name:
        return tool
    aliases = (tool.name, *(alias for alias in tool.aliases if alias != name))
    return replace(tool, declaration={**tool.declaration, "name": name}, aliases=aliases)
