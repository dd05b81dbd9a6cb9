"""The agent loop: call the model, run the tools that it calls, and return their results, until it calls no more tools.

All I/O goes through the injected `World`, and everything that happens is yielded as an event. There
are two phases: awaiting the model, and dispatching its tool calls. Each step replaces the complete
state, including the reason for the next LLM request.
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
from agentobs.agent.agent_run import Run, RunInputs
from agentobs.agent.arguments import check_functions, check_list, check_prompt, check_value
from agentobs.agent.compaction import compaction
from agentobs.agent.compaction.nudge import nudge
from agentobs.agent.compaction.overflow import send_fitting_request
from agentobs.agent.events import Event, FollowUp, OutputRetry, Steering, SubAgent
from agentobs.agent.execution.classifier import Classifier, run_classifier
from agentobs.agent.execution.hook_runner import LiveHooks
from agentobs.agent.execution.idle_connections import close_idle_connections
from agentobs.agent.execution.live_answers import Inbox, LiveAnswers, Person, token_refresh
from agentobs.agent.execution.tool_runner import Keep, live_tools
from agentobs.agent.hooks import Hook, table
from agentobs.agent.interruption import Stopped
from agentobs.agent.lifecycle_hooks import run_failure_hooks, run_start_hooks, run_stop_hooks
from agentobs.agent.model import error_classes
from agentobs.agent.model.output_limits import is_cut, is_unfinished
from agentobs.agent.model.prompt import SectionFunction
from agentobs.agent.requests.budget_check import enforce_budget, is_over_budget
from agentobs.agent.requests.turn_request import continue_response, keep_cut_response
from agentobs.agent.run_check import check_client, check_options, check_tool_wiring, check_wiring
from agentobs.agent.run_result import Result
from agentobs.agent.state import (
    AgentOptions,
    Conversation,
    Prompt,
    State,
    Tools,
    after_partial_response,
    after_response,
    calls,
    initial_state,
    next_turn,
    prompted_again,
    with_context,
    with_unique_ids,
)
from agentobs.agent.sub_agents.starter import Starter, check_agents, take_background_results
from agentobs.agent.tool_calls.dispatcher import Dispatcher
from agentobs.agent.tool_calls.plan import Crew
from agentobs.agent.tools import structured_output
from agentobs.agent.tools.tool import Tool, check_fallbacks, check_tools
from agentobs.errors import ReplayEnd, UsageError
from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import Place, QuerySource, WorldQuestion
from agentobs.world import Abort, Wiring, World, no_message


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
    sections: Mapping[str, SectionFunction] | None = None,
    memory: Callable[[], str | None] | None = None,
    hooks: Sequence[Hook] = (),
    hook_model: str | None = None,
    classifier: Classifier | None = None,
) -> World:
    """Return the world of an agent: the client, the tools, the system's clock, IDs and randomness.

    In a replay, return the world of the replay instead.

    Args:
        client: the client of the provider.
        tools: the tools that can run.
        person: a function that requests an approval from a person; None if no person is available.
        inbox: holds messages to the agent that arrive while it runs.
        abort: stops runs of this world from outside.
        roots: the folders that must contain the paths of tools; by default the working directory.
        keep: a function that stores the full version of a result that is too long for the model,
            such as `agentobs.wiring.keep_result`.
        spent_today: a function that returns the spending since midnight UTC, for `Budget.day_usd`,
            such as `agentobs.wiring.spent_today`.
        refresh: a function that refreshes the client's credentials, for example by setting `client.api_key`, and
            returns whether there are new credentials. It is called at most once per request, after a 401 or a 403,
            which cloud platforms and gateways send for an expired token. A second refusal is final. A sync function
            runs in a thread. By default, a client with `credentials` gets a new token.
        load: a function that reads an earlier conversation, to resume or fork it, such as
            `agentobs.wiring.load_conversation`.
        sections: the functions that write sections of the system prompt:
            `SystemPrompt.function_sections`.
        memory: a function that returns the session's memory, which is used instead of a summary
            when the conversation gets too long.
        hooks: the hooks that can run: the table in the options.
        hook_model: the default model for prompt and agent hooks.
        classifier: answers approval requests before the person does, or if there is no person.

    Raises:
        UsageError: the client is synchronous or closed, tools or hooks cannot be used together, or an
            argument is of the wrong kind.
    """
    check_client(client)
    check_tools(tools)
    check_fallbacks(tools)
    hooks = table(hooks)
    check_functions(
        person=person,
        keep=keep,
        spent_today=spent_today,
        refresh=refresh,
        load=load,
        memory=memory,
    )
    _check_values(inbox, abort, roots, sections, hook_model, classifier)
    tool_runner = live_tools(tools, keep=keep, person=person is not None)
    hook_runner = LiveHooks(hooks, client, model=hook_model, tools=tools, roots=roots, run=run)
    answers = LiveAnswers(
        tools,
        tool_runner,
        person=person,
        inbox=inbox,
        roots=roots,
        spent_today=spent_today,
        refresh=refresh or token_refresh(client),
        load=load,
        sections=sections,
        memory=memory,
        classify=None if classifier is None else partial(run_classifier, classifier, client),
        hooks=hook_runner.answer,
    )
    return runtime.effective_world(
        World(
            client=client,
            run_tool=tool_runner.run_tool,
            stop_tool=tool_runner.stop_tool,
            tool_function=tool_runner.function,
            is_mutating=tool_runner.is_mutating,
            ask=answers.ask,
            message_arrived=no_message if inbox is None else inbox.message_arrived,
            settled=hook_runner.wait_for_background,
            close_idle_connections=partial(close_idle_connections, client),
            abort=abort or Abort(),
            wiring=Wiring(
                tools={each.name: each.declaration for each in tools},
                run_tool=tool_runner.run_tool,
                ask=answers.ask,
                has_person=person is not None,
                hooks=hooks,
                sections=frozenset(sections or ()),
                reads_spending=spent_today is not None,
            ),
        )
    )


def _check_values(
    inbox: object,
    abort: object,
    roots: object,
    sections: object,
    hook_model: object,
    classifier: object,
) -> None:
    """Raise a UsageError if an argument of `live_world` is of the wrong kind."""
    check_value(isinstance(inbox, Inbox | None), inbox, "inbox", "Pass an agentobs.agent.Inbox")
    check_value(isinstance(abort, Abort | None), abort, "abort", "Pass an agentobs.world.Abort")
    check_list(roots, "roots", (Path, str), "Pass a list of folders, each a pathlib.Path")
    check_value(
        sections is None
        or (isinstance(sections, Mapping) and all(map(callable, sections.values()))),
        sections,
        "sections",
        "Pass prompt.function_sections",
    )
    check_value(
        hook_model is None or (isinstance(hook_model, str) and bool(hook_model.strip())),
        hook_model,
        "hook_model",
        "Pass the name of a model, or None",
    )
    check_value(
        isinstance(classifier, Classifier | None),
        classifier,
        "classifier",
        "Pass an agentobs.agent.Classifier, or None",
    )


async def run(
    prompt: Prompt,
    *,
    world: World,
    options: AgentOptions,
    tools: Tools = (),
    conversation: Conversation | None = None,
    source: QuerySource = "main",
) -> AsyncGenerator[Event, None]:
    """Run the agent on a prompt; yield its events, always ending with a `Result`.

    The events of background agents are yielded as well, as soon as they happen during tools and approval waits, else
    with the next event of the run. `Conversation.background_events` has a listener for the time between runs.

    To stop a run gracefully, use the world's `abort`. To stop it immediately and without a result,
    close the generator or cancel its task; all open spans are closed.

    Args:
        prompt: the prompt of the user.
        world: does all I/O; its `run_tool` executes tools.
        options: the options of the run.
        tools: the tools that are declared to the model.
        conversation: the conversation that the run continues; by default a new conversation.
        source: the source of the LLM requests.

    Raises:
        UsageError: the client is synchronous or closed, the prompt is blank or neither a text nor a list, two tools
            have the same name, the output cannot be declared to the model, an option is invalid, tools or hooks were
            given to the run or to the world only, or another run is using the conversation.
        ReplayEnd: a replay differs from its recording. Raised unchanged, without a result.
    """
    check_prompt(prompt)
    check_options(options)
    if isinstance(tools, Tool) or not callable(tools):
        check_declarations(tools, options)  # type: ignore[arg-type]  # it refuses a single tool
        if source == "main":  # an agent of a hook may have only some of the tools
            check_fallbacks(tools)  # type: ignore[arg-type]
    check_client(world.client)
    check_wiring(world, options, None if callable(tools) else tools)
    conversation = Conversation() if conversation is None else conversation
    result = None
    with conversation.claimed():
        async with aclosing(_run(prompt, world, options, tools, conversation, source)) as events:
            async for event in events:
                # An event of an agent may precede the waiting events of the same agent.
                if not isinstance(event, SubAgent):
                    for waiting in conversation.background_events.take():
                        yield waiting
                if isinstance(event, Result):
                    result = event
                else:
                    yield event
    if result is not None:  # after the claim, so that a consumer may stop reading here
        yield result


def _run(
    prompt: Prompt,
    world: World,
    options: AgentOptions,
    tools: Tools,
    conversation: Conversation,
    source: QuerySource,
) -> AsyncGenerator[Event, None]:
    """Start a run whose inputs are valid, and return its events."""
    output, state = options.output, initial_state(conversation, prompt)
    inputs = RunInputs(
        world=world,
        options=options,
        tools=tools,
        started_ns=world.now(),
        output_declaration=structured_output.declaration(output) if output is not None else None,
        source=source,
    )
    return _play(Run(inputs, conversation, state))


async def _play(run: Run) -> AsyncGenerator[Event, None]:
    """Run the main agent or a sub-agent, and yield the events up to the result."""
    try:
        with _recorded_interaction(run) as recorded:
            try:
                async with aclosing(_turns(run, recorded)) as turns:
                    async for event in turns:
                        yield event
            except error_classes.PROVIDER_ERRORS as error:
                run.fail(error_classes.terminal_reason(error), error)
                async for hook_event in run_failure_hooks(run, recorded.place):
                    yield hook_event
                raise
            finally:
                recorded.subtype, recorded.is_stopped = run.progress.subtype, run.is_stopped
    except error_classes.PROVIDER_ERRORS:
        pass
    except ReplayEnd:
        raise
    except Exception as error:
        run.fail("internal_error", error)
    yield run.result(recorded.place)


def _recorded_interaction(run: Run) -> contextlib.AbstractContextManager[telemetry.Interaction]:
    agent = run.inputs.options.agent
    if run.inputs.parent is not None and not run.inputs.is_background:
        return telemetry.sub_agent(agent)
    return telemetry.interaction(run.inputs.world, agent, is_background=run.inputs.is_background)


async def complete(
    prompt: Prompt,
    *,
    world: World,
    options: AgentOptions,
    tools: Tools = (),
    conversation: Conversation | None = None,
) -> Result:
    """Run the agent on a prompt, and return only the result. The arguments and errors are those of `run`."""
    events_of_run = run(
        prompt, world=world, options=options, tools=tools, conversation=conversation
    )
    async with aclosing(events_of_run) as events:
        async for event in events:
            if isinstance(event, Result):
                return event
    raise AssertionError("a run ended without a result")


async def _turns(run: Run, recorded: telemetry.Interaction) -> AsyncGenerator[Event, None]:
    """Run turns until there is no next turn."""
    progress, world = run.progress, run.inputs.world
    async for hook_event in run_start_hooks(run, recorded.place):
        yield hook_event
    if progress.subtype != "success":
        return
    turn = progress.state.turn
    texts, agent_events = await take_background_results(run, recorded.place, f"{turn}:start", turn)
    for agent_event in agent_events:
        yield agent_event
    progress.next_state = with_context(progress.state, texts)
    while progress.next_state is not None:
        state, progress.next_state, progress.depth = progress.next_state, None, 0
        here = telemetry.in_turn(world, recorded.place, state.turn)
        async for budget_event in enforce_budget(run, here, f"{state.turn}:before"):
            yield budget_event
        may_continue = progress.subtype == "success"
        tools = await _tools_of(run, here, state.turn) if may_continue else None
        if world.abort.should_stop(f"{state.turn}:beginning", 0):
            progress.conversation.messages = state.messages
            run.count_entered_agents()
            _abort(run, f"{state.turn}:beginning", 0, here)
            return
        if tools is None:
            return
        progress.state = state
        crew = Crew(
            world,
            tools,
            run.inputs.options.permissions,
            progress.conversation,
            progress.tool_call_ids,
            run.inputs.options.output,
            run.hooks,
            Starter(run, tools, _play) if any(tool.agents for tool in tools) else None,
            run.inputs.refused_tools,
        )
        dispatcher = Dispatcher(crew, here, state.turn)
        try:
            async with aclosing(_turn(run, tools, dispatcher, here)) as events:
                async for event in events:
                    yield event
        finally:
            await dispatcher.close()
            run.totals.tools_ns += dispatcher.tools_ns


async def _turn(
    run: Run, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Call the model, and run its tool calls. Sets the next state, unless the run ends."""
    responses_before = len(run.totals.responses)
    try:
        async with aclosing(send_fitting_request(run, tools, dispatcher, here)) as events:
            async for event in events:
                yield event
        if len(run.totals.responses) == responses_before:
            # Failed attempts have used up the budget.
            for kept in _keep_cut_response(run):
                yield kept
            return
        state = run.progress.state
        message, original_ids = with_unique_ids(
            run.totals.responses[-1], run.progress.tool_call_ids
        )
        if is_cut(message):
            state, requested = after_partial_response(state, message)
        else:
            state, requested = after_response(state, message), calls(message)
    except error_classes.PROVIDER_ERRORS:
        for kept in _keep_cut_response(run):
            yield kept
        raise
    except Stopped as stopped:
        state = run.progress.state
        dispatcher.stopped_at = stopped.point, stopped.count
        partial_message = {"content": [], **run.totals.void_responses[-1]}
        message, original_ids = with_unique_ids(partial_message, run.progress.tool_call_ids)
        state, requested = after_partial_response(state, message)
    else:
        compaction.store_token_count(run, state.messages, run.totals.responses[-1].get("usage"))
    # Store the response before its tools run, so that the run can be resumed if it is killed now.
    run.store(state)
    run.progress.tool_call_ids |= {question.tool_use_id for question in requested}
    if requested:
        dispatcher.deciding.over_budget = await is_over_budget(run, here)
        async with aclosing(dispatcher.finish(requested, original_ids)) as steps:
            async for step in steps:
                yield step
        state = next_turn(
            state, dispatcher.results, dispatcher.steering, dispatcher.deciding.context
        )
        if dispatcher.stopped_at is None:
            key = f"{state.turn - 1}:tools"
            texts, agent_events = await take_background_results(run, here, key, state.turn)
            for each in agent_events:
                yield each
            if texts:
                state = replace(with_context(state, texts), transition="background_result")
        run.store_tool_results(dispatcher, state)
    if dispatcher.stopped_at is not None:
        _abort(run, *dispatcher.stopped_at, here)
    elif requested:
        if dispatcher.steering:
            run.forget_repeated_turns()
            yield _steered(run, here, state.turn - 1, dispatcher.steering, dispatcher.skipped)
        async for event in _after_tools(run, state, dispatcher, here):
            yield event
    else:
        async for event in _after_response_without_calls(run, state, here):
            yield event


def _keep_cut_response(run: Run) -> Iterator[Event]:
    """Keep a cut response in the conversation, because the repeated request failed and the run ends."""
    for message in keep_cut_response(run):
        run.store(after_partial_response(run.progress.state, run.totals.responses[-1])[0])
        yield message


async def _after_tools(
    run: Run, state: State, dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Continue after tool results, unless the output is complete or a limit is reached."""
    max_turns = run.inputs.options.max_turns
    if dispatcher.deciding.hook_stops:
        run.end_by_hook("hook_stopped", "\n".join(dispatcher.deciding.hook_reasons))
    elif dispatcher.output is not None and not dispatcher.steering:
        async for hook_event in run_stop_hooks(run, state, here):
            yield hook_event
        run.progress.output = dispatcher.output if run.progress.next_state is None else None
    elif state.output_retries > run.inputs.options.max_output_retries:
        run.end("error_max_structured_output_retries", "max_structured_output_retries")
    elif max_turns is not None and state.tool_turns >= max_turns:
        run.end("error_max_turns", "max_turns")
        telemetry.event(run.inputs.world, here, "max_turns", None, {"max_turns": max_turns})
    else:
        run.progress.next_state = state


async def _after_response_without_calls(
    run: Run, state: State, here: Place | None
) -> AsyncGenerator[Event, None]:
    """End the run after a response without calls, or continue if there is a reason.

    Reasons are an unfinished response, a missing output, messages to the agent, results of
    background agents, an unspent token budget, and stop hooks.
    """
    if run.totals.responses[-1].get("stop_reason") == "refusal":
        run.end("error_during_execution", "refusal")
        return
    if is_unfinished(run.totals.responses[-1]):
        for event in continue_response(run, state, here):
            yield event
        return
    if run.inputs.options.output is not None:
        number = state.output_retries + 1
        if number > run.inputs.options.max_output_retries:
            run.end("error_max_structured_output_retries", "max_structured_output_retries")
            return
        telemetry.event(run.inputs.world, here, "structured_output_retry", None, {"number": number})
        prompt = structured_output.NUDGE
        run.progress.next_state = prompted_again(state, [prompt], "structured_output_retry")
        yield OutputRetry(state.turn, number)
        return
    messages = await telemetry.ask(run.inputs.world, here, "steering", f"{state.turn}:end")
    if messages:
        run.forget_repeated_turns()
        run.progress.next_state = prompted_again(state, messages, "steering")
        yield _steered(run, here, state.turn, tuple(messages), ())
        return
    texts, agent_events = await take_background_results(
        run, here, f"{state.turn}:end", state.turn + 1
    )
    if texts:
        run.progress.next_state = prompted_again(state, texts, "background_result")
        for each in agent_events:
            yield each
        return
    messages = await telemetry.ask(run.inputs.world, here, "follow_up", f"{state.turn}:end")
    if messages:
        run.forget_repeated_turns()
        run.progress.next_state = prompted_again(state, messages, "follow_up")
        telemetry.event(run.inputs.world, here, "follow_up", None, {"texts": len(messages)})
        yield FollowUp(state.turn, tuple(messages))
        return
    nudge_and_prompt = nudge(run, here)
    if nudge_and_prompt is not None:
        event, prompt = nudge_and_prompt
        run.progress.next_state = prompted_again(state, [prompt], "token_budget")
        yield event
        return
    async for hook_event in run_stop_hooks(run, state, here):
        yield hook_event


def _steered(
    run: Run, here: Place | None, turn: int, texts: tuple[str, ...], skipped: tuple[str, ...]
) -> Steering:
    """Emit that the agent received messages, and return the event."""
    numbers = {"texts": len(texts), "skipped": len(skipped)}
    telemetry.event(run.inputs.world, here, "steering", None, numbers)
    return Steering(turn, texts, skipped)


def _abort(run: Run, point: str, count: int, here: Place | None) -> None:
    """Record the point at which the run was aborted, so that a replay stops there as well."""
    place, world = point.split(":")[1], run.inputs.world
    is_streaming = place not in ("dispatch", "call", "hook", "consent", "tool", "tools")
    run.end("error_during_execution", "aborted_streaming" if is_streaming else "aborted_tools")
    question = WorldQuestion("abort", point)
    telemetry.emit_answer(world, here, question, world.now(), {"count": count})
    telemetry.event(world, here, "abort", place, {"count": count})


async def _tools_of(run: Run, here: Place | None, turn: int) -> Sequence[Tool] | None:
    """Return the tools that are available in a turn; return None and fail the run if a required tool is missing."""
    tools = run.inputs.tools() if callable(run.inputs.tools) else run.inputs.tools
    if callable(run.inputs.tools):
        check_declarations(tools, run.inputs.options)
        if run.inputs.source == "main":
            check_tool_wiring(run.inputs.world, tools)
    tools = [_renamed(tool, run.inputs.world.tool_name(tool.name, tool.aliases)) for tool in tools]
    conditional = [tool.name for tool in tools if tool.available is not None]
    if not conditional:
        return tools
    available = await telemetry.ask(run.inputs.world, here, "tool_set", str(turn), conditional)
    missing = [t for t in tools if t.available is not None and t.name not in available]
    required = [tool.name for tool in missing if not tool.optional]
    if required:
        error = UsageError(f"these tools are not available: {', '.join(required)}")
        run.fail("tool_set_error", error)
        return None
    return [tool for tool in tools if tool not in missing]


def check_declarations(tools: Sequence[Tool], options: AgentOptions) -> None:
    """Check that tools can be declared together.

    Raises:
        UsageError: two tools have the same name, a sub-agent uses an unknown tool, or a name is reserved.
    """
    check_tools(tools)
    check_agents(tools)
    if options.output is not None and any(tool.name == structured_output.NAME for tool in tools):
        raise UsageError(
            f"the tool name {structured_output.NAME} is reserved for the structured output",
            todo="Rename the tool",
        )


def _renamed(tool: Tool, name: str) -> Tool:
    """Return a tool under another of its names; its declared name becomes an alias."""
    if name == tool.name:
        return tool
    aliases = (tool.name, *(alias for alias in tool.aliases if alias != name))
    return replace(tool, declaration={**tool.declaration, "name": name}, aliases=aliases)
