"""The loop: ask the model, run the tools it calls, tell it what they answered, until it calls none.

Everything it needs of the outside it asks of the world; everything that happens comes out as an event.
There are two phases: awaiting the model, and dispatching its tools. The state is replaced whole at each
step, with the reason why the model is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from anthropic import AsyncAnthropic
from pydantic import BaseModel

from agentobs.agent import budget, output, recovery, telling
from agentobs.agent.asking import Inbox, LiveAnswers, Person
from agentobs.agent.dispatch import Crew, Dispatcher
from agentobs.agent.events import (
    BudgetReached,
    Denial,
    Event,
    FollowUp,
    Limit,
    Message,
    OutputRetry,
    RequestStart,
    Result,
    Retry,
    Steering,
    Subtype,
    TerminalReason,
    Tombstone,
    billed,
)
from agentobs.agent.execution import Keep, live_tools
from agentobs.agent.interrupt import Interrupted, Stopped, Watch
from agentobs.agent.model import Asking, ToolAsked, attempt
from agentobs.agent.state import (
    Conversation,
    Options,
    Prompt,
    State,
    answered,
    begin,
    broken_off,
    calls,
    go_on,
    next_turn,
    own_copy,
    request,
    told_apart,
    used_ids,
)
from agentobs.agent.tools import Tool, check_tools
from agentobs.errors import ReplaySays, UsageError
from agentobs.ledger import RISING_TURNS, Meter, runaway
from agentobs.records.canonical import Json
from agentobs.records.exchanges import Place, WorldQuestion
from agentobs.records.messages import text_of
from agentobs.records.usage import Certainty, not_told
from agentobs.world import Abort, World, in_force

LOOKED_AT = RISING_TURNS + 1
"""How many of the last turns are looked at for a runaway."""

Tools = Sequence[Tool] | Callable[[], Sequence[Tool]]
"""The tools, or a function that gives them; it is asked once a turn."""


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
) -> World:
    """Return the world in force: this client, these tools, the system's clock, ids and chance.

    Where another world stands for the live one, as in a replay, that one is returned.

    Args:
        client: the provider's client.
        tools: the tools that can be run.
        person: asks a person for consent; None means that there is nobody to ask.
        inbox: where somebody may say something to the agent while it runs.
        abort: stops runs of this world from outside.
        roots: the folders that paths of tools have to lie in; default the working directory.
        keep: keeps the whole of a result that is too long for the model, such as `agentobs.keep_result`.
        spent_today: what was spent since midnight UTC, for `Budget.day_usd`: `agentobs.spent_today`.
    """
    running = live_tools(tools, keep=keep, person=person is not None)
    answers = LiveAnswers(
        tools, running, person=person, inbox=inbox, roots=roots, spent_today=spent_today
    )
    return in_force(
        World(
            client=client,
            run_tool=running.run_tool,
            stop_tool=running.stop_tool,
            ask=answers.ask,
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
) -> AsyncGenerator[Event, None]:
    """Answer a prompt; yield what happens, a `Result` last, whatever happens.

    `tools` are what the model is told of; `world.run_tool` runs them. With a `conversation` the run goes
    on from it. Close the generator (or cancel its task) to leave at once, without a result: every open
    span is closed then. To stop a run in good order, use the world's `abort`.

    Raises:
        UsageError: two tools have one name, or an output cannot be told to the model.
        ReplaySays: a replay that differs from its recording leaves as it is, without a result.
    """
    if not callable(tools):
        _check(tools, options)
    talk = Conversation() if conversation is None else conversation
    owed = output.declaration(options.output) if options.output is not None else None
    this = _Run(world, options, tools, owed, talk, world.now())
    try:
        with telling.interaction(world, options.agent) as told:
            try:
                async with aclosing(_turns(this, begin(talk, prompt), told)) as turns:
                    async for event in turns:
                        yield event
            except recovery.PROVIDER_ERRORS as error:
                this.failed(recovery.terminal_reason(error), error)
                raise
            finally:
                told.subtype, told.is_stopped = this.subtype, this.is_stopped
    except recovery.PROVIDER_ERRORS:
        pass
    except ReplaySays:
        raise
    except Exception as error:
        this.failed("internal_error", error)
    yield this.result(told.place)


async def complete(
    prompt: Prompt,
    *,
    world: World,
    options: Options,
    tools: Tools = (),
    conversation: Conversation | None = None,
) -> Result:
    """Answer a prompt and return the result alone; arguments and errors are those of `run`."""
    running = run(prompt, world=world, options=options, tools=tools, conversation=conversation)
    async with aclosing(running) as events:
        async for event in events:
            if isinstance(event, Result):
                return event
    raise AssertionError("a run ended without a result")


@dataclass(slots=True)
class _Run:
    """What is known of one run beside its state: what it is given, and what adds up."""

    world: World
    options: Options
    tools: Tools
    owed: Json | None
    """What the provider is told of the tool that takes the output."""
    talk: Conversation
    started_ns: int
    client: AsyncAnthropic = field(init=False)
    """The world's client without its own retries: the loop owns them."""
    meter: Meter = field(default_factory=Meter)
    answers: list[Json] = field(default_factory=list)
    """Whole answers."""
    broken: list[Json] = field(default_factory=list)
    """What came of answers that broke off."""
    latest: list[tuple[Meter, int]] = field(default_factory=list)
    """What each turn used, failed attempts left out, and how many tokens it said."""
    used: frozenset[str] = frozenset()
    """Ids of the tool calls in the conversation."""
    provider_ns: int = 0
    provider_ok_ns: int = 0
    tools_ns: int = 0
    denials: list[Denial] = field(default_factory=list)
    goes_beyond: set[Limit] = field(default_factory=set)
    """Limits that were reached and are not to be told again."""
    day_usd: Decimal = Decimal(0)
    """What was spent today, as the world last said."""
    output: BaseModel | None = None
    following: State | None = None
    """The state of the next turn; None where there is none."""
    subtype: Subtype = "success"
    reason: TerminalReason = "completed"
    error: Exception | None = None

    def __post_init__(self) -> None:
        """Take the client's retries away."""
        self.client = self.world.client.with_options(max_retries=0)
        self.used = used_ids(self.talk.messages)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody stopped the run on purpose."""
        return self.reason in ("aborted_streaming", "aborted_tools")

    def ended(self, subtype: Subtype, reason: TerminalReason) -> None:
        """Note how the run ends."""
        self.subtype, self.reason = subtype, reason

    def failed(self, reason: TerminalReason, error: Exception) -> None:
        """Note which error ends the run."""
        self.ended("error_during_execution", reason)
        self.error = error

    def keep(self, state: State) -> None:
        """Keep the conversation as it stands, so that another run can go on from here."""
        self.talk.messages, self.talk.turns = state.messages, state.turn

    def ran(self, dispatcher: Dispatcher, state: State) -> None:
        """Count what tools did, and keep the conversation with their results."""
        self.denials += dispatcher.denials
        self.talk.messages, self.talk.tool_turns = state.messages, self.talk.tool_turns + 1

    def counted(self, message: Json, certainty: Certainty) -> None:
        """Count what an answer used, as far as it came."""
        usage = message.get("usage")
        if isinstance(usage, dict) and "output_tokens" in usage:
            model = message.get("model") or self.options.model
            for meter in (self.meter, self.talk.meter):
                meter.add(model, usage, self.world.now(), certainty)

    def turn_took(self, message: Json) -> None:
        """Note what a turn used by itself, where somebody looks for a runaway."""
        usage = message.get("usage")
        if not self.options.budget.runaway or not isinstance(usage, dict):
            return
        meter, said = Meter(), usage.get("output_tokens")
        meter.add(message.get("model") or self.options.model, usage, self.world.now())
        self.latest.append((meter, said if isinstance(said, int) else 0))

    def gave_up(self, message: Json, took_ns: int, error: Exception) -> None:
        """Count an answer that broke off, also where it never said what it used."""
        self.broken.append(message)
        self.provider_ns += took_ns
        if "usage" in message:
            self.counted(message, "lower_bound")
        elif recovery.may_have_cost(error):
            for meter in (self.meter, self.talk.meter):
                meter.add_rows([(not_told(self.options.model), self.world.now())])

    def result(self, place: Place | None) -> Result:
        """Return the result."""
        last = self.answers[-1] if self.answers else {}
        error = self.error
        return Result(
            subtype=self.subtype,
            terminal_reason=self.reason,
            text=text_of(last.get("content")),
            stop_reason=last.get("stop_reason"),
            num_turns=len(self.answers),
            error=recovery.name_of(error) if error else None,
            error_text=recovery.text_of(error) if error else None,
            usage=billed(self.options.model, [*self.answers, *self.broken]),
            duration_ns=max(self.world.now() - self.started_ns, 0),
            provider_ns=self.provider_ns,
            provider_ok_ns=self.provider_ok_ns,
            tools_ns=self.tools_ns,
            session_id=place.session_id if place else None,
            denials=tuple(self.denials),
            output=self.output,
            meter=self.meter,
            exception=error,
        )


async def _turns(
    this: _Run, state: State, told: telling.Interaction
) -> AsyncGenerator[Event, None]:
    """Take turns until one is the last."""
    this.following = state
    while this.following is not None:
        state, this.following = this.following, None
        here = telling.in_turn(told.place, state.turn)
        async for reached in _within_budget(this, here, f"{state.turn}:before"):
            yield reached
        tools = await _tools_of(this, here, state.turn) if this.subtype == "success" else None
        if this.world.abort.reached(f"{state.turn}:beginning", 0):
            this.talk.messages = state.messages
            _abort(this, f"{state.turn}:beginning", 0, here)
            return
        if tools is None:
            return
        options = this.options
        crew = Crew(this.world, tools, options.permissions, this.talk, this.used, options.output)
        dispatcher = Dispatcher(crew, here, state.turn)
        try:
            async with aclosing(_turn(this, state, tools, dispatcher, here)) as events:
                async for event in events:
                    yield event
        finally:
            await dispatcher.close()
            this.tools_ns += dispatcher.tools_ns


async def _turn(
    this: _Run, state: State, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Ask the model and run the tools it calls; note the state that follows, unless the run ends here."""
    try:
        async with aclosing(_ask(this, state, tools, dispatcher, here)) as asking:
            async for event in asking:
                yield event
        if this.subtype != "success":
            return  # the money was spent by attempts that failed
        message, doubles = told_apart(this.answers[-1], this.used)
        state, asked = answered(state, message), calls(message)
    except Stopped as stopped:
        dispatcher.stopped_at = stopped.point, stopped.count
        message, doubles = told_apart({"content": [], **this.broken[-1]}, this.used)
        state, asked = broken_off(state, message)
    # The answer enters the conversation before its tools run: a run that is killed here can be resumed.
    this.keep(state)
    this.used |= {question.tool_use_id for question in asked}
    if asked:
        dispatcher.over_budget = await _is_over_budget(this)
        async with aclosing(dispatcher.finish(asked, doubles)) as running:
            async for step in running:
                yield step
        state = next_turn(state, dispatcher.results, dispatcher.steering)
        this.ran(dispatcher, state)
    if dispatcher.stopped_at is not None:
        _abort(this, *dispatcher.stopped_at, here)
    elif asked:
        if dispatcher.steering:
            yield _steered(this, here, state.turn - 1, dispatcher.steering, dispatcher.skipped)
        _after_tools(this, state, dispatcher, here)
    else:
        async for event in _after_answer(this, state, here):
            yield event


def _after_tools(this: _Run, state: State, dispatcher: Dispatcher, here: Place | None) -> None:
    """Go on after tools have answered, unless the output has come or the turns are used up."""
    most = this.options.max_turns
    if dispatcher.output is not None and not dispatcher.steering:
        this.output = dispatcher.output
    elif state.output_retries > this.options.max_output_retries:
        this.ended("error_max_structured_output_retries", "max_structured_output_retries")
    elif most is not None and state.tool_turns >= most:
        this.ended("error_max_turns", "max_turns")
        telling.event(this.world, here, "max_turns", None, {"max_turns": most})
    else:
        this.following = state


async def _after_answer(
    this: _Run, state: State, here: Place | None
) -> AsyncGenerator[Event, None]:
    """End after an answer without calls, unless an output is owed or somebody has something to say."""
    if this.answers[-1].get("stop_reason") == "refusal":
        this.ended("error_during_execution", "refusal")
        return
    if this.options.output is not None:
        number = state.output_retries + 1
        if number > this.options.max_output_retries:
            this.ended("error_max_structured_output_retries", "max_structured_output_retries")
            return
        telling.event(this.world, here, "structured_output_retry", None, {"number": number})
        this.following = go_on(state, [output.NUDGE], "structured_output_retry")
        yield OutputRetry(state.turn, number)
        return
    said = await telling.ask(this.world, here, "steering", f"{state.turn}:end")
    if said:
        this.following = go_on(state, said, "steering")
        yield _steered(this, here, state.turn, tuple(said), ())
        return
    said = await telling.ask(this.world, here, "follow_up", f"{state.turn}:end")
    if said:
        this.following = go_on(state, said, "follow_up")
        telling.event(this.world, here, "follow_up", None, {"texts": len(said)})
        yield FollowUp(state.turn, tuple(said))


def _steered(
    this: _Run, here: Place | None, turn: int, texts: tuple[str, ...], skipped: tuple[str, ...]
) -> Steering:
    telling.event(
        this.world, here, "steering", None, {"texts": len(texts), "skipped": len(skipped)}
    )
    return Steering(turn, texts, skipped)


def _abort(this: _Run, point: str, count: int, here: Place | None) -> None:
    """Note that the run was stopped, and where, so that a replay stops there, too."""
    streaming = point.split(":")[1] in ("beginning", "asking", "unsent", "streaming", "waiting")
    this.ended("error_during_execution", "aborted_streaming" if streaming else "aborted_tools")
    question = WorldQuestion("abort", point)
    telling.told(this.world, here, question, this.world.now(), {"count": count})
    telling.event(this.world, here, "abort", point.split(":")[1], {"count": count})


async def _tools_of(this: _Run, here: Place | None, turn: int) -> Sequence[Tool] | None:
    """Return the tools of a turn: those that may be missing only where they are there.

    None where one that has to be there is not; the run ends then.
    """
    tools = this.tools() if callable(this.tools) else this.tools
    if callable(this.tools):
        _check(tools, this.options)
    tools = [_named(tool, this.world.tool_name(tool.name, tool.aliases)) for tool in tools]
    asked = [tool.name for tool in tools if tool.available is not None]
    if not asked:
        return tools
    there = await telling.ask(this.world, here, "tool_set", str(turn), asked)
    missing = [t for t in tools if t.available is not None and t.name not in there]
    needed = [tool.name for tool in missing if not tool.optional]
    if needed:
        error = UsageError(f"these tools are not available: {', '.join(needed)}")
        this.failed("tool_set_error", error)
        return None
    return [tool for tool in tools if tool not in missing]


def _check(tools: Sequence[Tool], options: Options) -> None:
    check_tools(tools)
    if options.output is not None and any(tool.name == output.NAME for tool in tools):
        raise UsageError(
            f"a tool is named {output.NAME}, which is how the output is given",
            todo="Give the tool another name",
        )


def _named(tool: Tool, name: str) -> Tool:
    """Return a tool under the name that it goes by; its own name becomes one that it answers to."""
    if name == tool.name:
        return tool
    aliases = (tool.name, *(alias for alias in tool.aliases if alias != name))
    return replace(tool, declaration={**tool.declaration, "name": name}, aliases=aliases)


async def _within_budget(
    this: _Run, here: Place | None, key: str
) -> AsyncGenerator[BudgetReached, None]:
    """Look whether a limit was reached, and what follows; where it is to stop, the run ends.

    `key` tells this look from the others of the lane.
    """
    allowed = this.options.budget
    if allowed.day_usd is not None:
        spent = await telling.ask(this.world, here, "spent_today", key)
        this.day_usd = Decimal(spent) if spent is not None else Decimal(0)
    limit = budget.reached(allowed, await _spent(this))
    if limit is None or limit in this.goes_beyond:
        return
    goes_on = allowed.at_limit == "warn"
    if allowed.at_limit == "ask":
        goes_on = await _may_go_beyond(this, here, key, limit)
        if this.world.abort.reached(f"{key.partition(':')[0]}:beginning", 0):
            return  # nobody has answered
    telling.event(this.world, here, "budget", limit, {"goes_on": goes_on})
    if goes_on:
        this.goes_beyond.add(limit)
    elif limit == "session_turns":
        this.ended("error_max_turns", "max_turns")
    else:
        this.ended("error_max_budget_usd", "max_budget")
    yield BudgetReached(limit, goes_on)


async def _may_go_beyond(this: _Run, here: Place | None, key: str, limit: Limit) -> bool:
    """Ask a person whether the run may go on beyond a limit."""
    asked = {"about": {"limit": limit}, "reason": f"The budget {limit} is used up."}
    with telling.span("blocked_on_user", here, "budget") as blocked:
        answer = await telling.ask(this.world, blocked, "consent", f"{key}:{limit}", asked)
    return isinstance(answer, dict) and answer.get("behaviour") == "allow"


async def _is_over_budget(this: _Run) -> bool:
    """Return whether the answer that calls these tools has used up the money, so that none may run."""
    allowed = this.options.budget
    if allowed.at_limit != "stop":
        return False
    limit = budget.reached(allowed, await _spent(this))
    return limit in ("interaction_usd", "session_usd", "day_usd")


async def _spent(this: _Run) -> budget.Spent:
    """Return what was spent; money only where a limit asks for it, and not in the event loop's thread."""
    turns, day_usd = this.talk.tool_turns, this.day_usd
    if not this.options.budget.is_priced:
        return budget.Spent(day_usd=day_usd, session_turns=turns)
    return await asyncio.to_thread(_priced, this, day_usd, turns)


def _priced(this: _Run, day_usd: Decimal, turns: int) -> budget.Spent:
    talk, last = this.talk.meter.total(), this.latest[-LOOKED_AT:]
    costs = [meter.total().usd for meter, _ in last]
    return budget.Spent(
        interaction_usd=this.meter.total().usd or Decimal(0),
        session_usd=talk.usd or Decimal(0),
        day_usd=day_usd,
        session_turns=turns,
        unpriced_calls=talk.unpriced_calls,
        runaway=runaway(costs, [said for _, said in last]),
    )


async def _ask(
    this: _Run, state: State, tools: Sequence[Tool], dispatcher: Dispatcher, here: Place | None
) -> AsyncGenerator[Event, None]:
    """Ask until there is a whole answer; the last event is its `Message`. Safe calls begin while it comes.

    Raises:
        recovery.PROVIDER_ERRORS: the last failure, when there is no use in asking again.
        Stopped: the run was aborted.
    """
    arguments = request(state, this.options, tools, this.owed)
    message: Json = {}
    with telling.span("llm_request", here, this.options.model) as inside:
        for number in itertools.count(1):
            _go_on(this, f"{state.turn}:asking:{number}")
            yield RequestStart(state.turn, number)
            _go_on(this, f"{state.turn}:unsent:{number}")
            point, clock = f"{state.turn}:streaming:{number}", _Clock(this.world)
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
            async for reached in _within_budget(this, here, f"{state.turn}:retry {number}"):
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


class _Clock:
    """Adds up the time in which an answer is waited for or comes; the consumer's own is not in it."""

    def __init__(self, world: World) -> None:
        self._world, self._sum, self._since = world, 0, world.now()
        self._stands = False

    def stop(self) -> int:
        """Stop, and return the nanoseconds so far."""
        if not self._stands:
            self._sum += max(self._world.now() - self._since, 0)
            self._stands = True
        return self._sum

    def go_on(self) -> None:
        """Go on adding."""
        self._since, self._stands = self._world.now(), False


async def _wait(this: _Run, seconds: float, point: str) -> None:
    """Wait before the next attempt.

    Raises:
        Stopped: the run was aborted meanwhile.
    """
    abort = this.world.abort
    with contextlib.suppress(Interrupted):
        async with Watch(abort, None) as watch:
            await watch.guard(this.world.sleep(seconds))
    _go_on(this, point)


def _go_on(this: _Run, point: str) -> None:
    """Do nothing, or raise `Stopped` where the run is to stop at this point."""
    if this.world.abort.reached(point, 0):
        this.broken.append({})
        raise Stopped(point, 0)


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
